// grouped_gemm with quantised x: per lane, products of codes are summed over the columns that share
// both scales (segment_end; element i of a segment in lane i % 16), then multiplied with both and
// added to the lane's total by one fused multiply-add. Included once per target, after simd.hpp.

#if defined(MOE64_CPU_GROUPED_GEMM_CODES_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_GROUPED_GEMM_CODES_SIMD_HPP
#undef MOE64_CPU_GROUPED_GEMM_CODES_SIMD_HPP
#else
#define MOE64_CPU_GROUPED_GEMM_CODES_SIMD_HPP
#endif

#include "cpu/gemm/portable/dot_gemm.hpp"

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// The codes of a tile's outputs, segment after segment: [outs] scales, then [outs, width] codes as
/// f32, width being the segment rounded up to whole lanes. Loaded once for all rows if all of them
/// fit, otherwise once more for every panel of rows.
class code_panel {
 public:
  code_panel(grouped_gemm_args const& args, float* memory, index_t floats, index_t padded_outs)
      : args_(args), values_(memory), outs_(padded_outs) {
    index_t needed = 0;
    each_segment([&](index_t, index_t count) { needed += size(count); });
    whole_ = needed <= floats;
    static_assert(weight_floats >= most_outs * (promotion + 1) + lane_count);
  }

  void load_whole(tile_place const& at) const {
    float* to = values_;
    each_segment([&](index_t begin, index_t count) {
      if (whole_) load(at, begin, count, to);
      to += size(count);
    });
  }

  /// lanes [at.rows, outs, 16] += scaled products of the rows of the tile.
  void add(tile_place const& at, float* lanes, float* x) const {
    float x_scales[most_x_scales];
    index_t const blocks = args_.x.layout().grid_cols(depth());
    bool const all_scales = at.rows * blocks <= most_x_scales;
    for (index_t r = 0; all_scales && r < at.rows; ++r) {
      load_scales(args_.x, 0, at.row_begin + r, 0, blocks, x_scales + r * blocks);
    }
    float* segment = values_;
    each_segment([&](index_t begin, index_t count) {
      if (!whole_) load(at, begin, count, values_);
      float* const from = whole_ ? segment : values_;
      segment += size(count);
      index_t const width = round_up(count, lane_count);
      for_each_row_panel(at.rows, [&](index_t r, auto rows) {
        float x_scale[dot_rows];
        for (index_t i = 0; i < rows; ++i) {
          index_t const row = at.row_begin + r + i;
          index_t const block = begin / x_block();
          x_scale[i] =
              all_scales ? x_scales[(r + i) * blocks + block] : scale_at(args_.x, 0, row, block);
          load_run(row_of(args_.x.values(), 0, row), begin, count, x + i * width);
          clear_run(x + i * width, count, width);
        }
        for (index_t n = 0; n < outs_; n += dot_outs) {
          add_scaled_dots<rows>(
              {x, 0, width, from + scales() + n * width, width, width / lane_count,
               lanes + (r * outs_ + n) * lane_count, outs_ * lane_count},
              x_scale, from + n);
        }
      });
    });
  }

 private:
  static constexpr index_t most_x_scales = 1024;

  [[nodiscard]] index_t depth() const { return args_.x.cols(); }
  [[nodiscard]] index_t x_block() const { return args_.x.layout().cols_per_scale(depth()); }
  [[nodiscard]] index_t weight_block() const {
    return args_.weights.layout().cols_per_scale(depth());
  }
  /// Floats of the scales of a segment, so that the codes behind them are aligned.
  [[nodiscard]] index_t scales() const { return round_up(outs_, lane_count); }
  [[nodiscard]] index_t size(index_t count) const {
    return scales() + outs_ * round_up(count, lane_count);
  }

  template <class Body>
  void each_segment(Body const& body) const {
    for (index_t begin = 0; begin < depth();) {
      index_t const end = segment_end(begin, depth(), x_block(), weight_block());
      body(begin, end - begin);
      begin = end;
    }
  }

  void load(tile_place const& at, index_t begin, index_t count, float* to) const {
    weight_stack const& weights = args_.weights;
    index_t const width = round_up(count, lane_count);
    index_t const rows_per_scale = weights.layout().rows_per_scale(weights.part_rows());
    std::fill(to, to + size(count), 0.0F);
    for (index_t n = 0; n < at.outs; ++n) {
      part_row const place = part_row_of(weights, at.out_begin + n);
      quantized_view const& matrix = weights.part(place.part);
      to[n] = matrix.is_plain()
                  ? 1.0F
                  : scale_at(matrix, at.expert, place.row / rows_per_scale, begin / weight_block());
      load_run(row_of(matrix.values(), matrix.values_at(at.expert), place.row), begin, count,
               to + scales() + n * width);
    }
  }

  grouped_gemm_args const& args_;
  float* values_;
  index_t outs_;
  bool whole_;
};

/// y of the rows and outputs of one task, quantised x.
inline void multiply_codes(grouped_gemm_args const& args, tile_place const& task) {
  // Scales lie among the codes.
  constexpr index_t floats = weight_floats + 1024;
  alignas(64) float weights[floats];
  dot_memory memory;
  code_panel const panel(args, weights, floats, round_up(task.outs, out_granule));
  panel.load_whole(task);
  finish_dots(args, task, memory,
              [&](tile_place const& at, float* lanes, float* x) { panel.add(at, lanes, x); });
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
