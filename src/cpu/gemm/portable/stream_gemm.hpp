// grouped_gemm of few rows by 8-bit floats: weights are read once, in the order of memory,
// dequantised and multiplied in registers. The order of additions is that of the big tile. Included
// once per target, after simd.hpp; only AVX-512 can look tables up fast enough for it to pay.

#if defined(MOE64_CPU_GROUPED_GEMM_STREAM_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_GROUPED_GEMM_STREAM_SIMD_HPP
#undef MOE64_CPU_GROUPED_GEMM_STREAM_SIMD_HPP
#else
#define MOE64_CPU_GROUPED_GEMM_STREAM_SIMD_HPP
#endif

#include "cpu/gemm/portable/dot_gemm.hpp"

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

inline constexpr index_t stream_rows = 4;
inline constexpr index_t stream_depth = 4096;
inline constexpr index_t stream_blocks = 64;

/// Whether the call's weights can be streamed.
inline bool takes_stream(grouped_gemm_args const& args, index_t rows) {
  quantized_view const& w = args.weights.part(0);
  if (HWY_TARGET != HWY_AVX3 || rows > stream_rows || args.transpose || w.is_plain()) return false;
  if (args.x.type() != dtype::bf16 || args.weights.cols() > stream_depth) return false;
  if (w.type() != dtype::e4m3 && w.type() != dtype::e5m2) return false;
  // Blocks may be stated larger than the matrix, as large as an index.
  index_t const block = std::min(w.layout().cols_per_scale(w.cols()), w.cols());
  index_t const block_rows = std::min(w.layout().rows_per_scale(w.rows()), w.rows());
  bool adjacent = true;
  for (int part = 0; part < args.weights.parts(); ++part) {
    adjacent = adjacent && args.weights.part(part).values().stride[2] == 1;
  }
  return adjacent && w.cols() % 32 == 0 && block % 32 == 0 && block * block_rows >= table_pays &&
         ceil_div(w.cols(), block) <= stream_blocks;
}

#if HWY_TARGET == HWY_AVX3

/// Rows of x as f32, and the tables of the row of scales that was used last. 80 KiB of stack.
class weight_stream {
 public:
  weight_stream(grouped_gemm_args const& args, tile_place const& task)
      : args_(args), depth_(args.weights.cols()) {
    for (index_t r = 0; r < task.rows; ++r) {
      load_run(row_of(args.x.values(), 0, task.row_begin + r), 0, depth_, x_ + r * depth_);
    }
  }

  /// lanes [rows of the task, outs, 16] = products of the tile's outputs.
  void multiply(tile_place const& at, float* lanes, index_t outs) {
    visit_number(args_.weights.type(), [&](auto number) {
      using number_type = decltype(number);
      if constexpr (std::is_same_v<number_type, e4m3_number> ||
                    std::is_same_v<number_type, e5m2_number>) {
        for (index_t n = 0; n < at.outs;) {
          // Two streams of memory side by side, each in ascending order.
          index_t const same = load_tables<number_type>(at, n);
          index_t const half = same / 2;
          for (index_t i = 0; i < half; ++i) multiply_outs<2>(at, n + i, half, lanes, outs);
          if (same % 2 != 0) multiply_outs<1>(at, n + same - 1, 0, lanes, outs);
          n += same;
        }
      }
    });
  }

 private:
  [[nodiscard]] index_t block() const { return args_.weights.layout().cols_per_scale(depth_); }

  /// Lanes of output n, or of n and n + apart.
  template <index_t Outs>
  void multiply_outs(tile_place const& at, index_t n, index_t apart, float* lanes,
                     index_t outs) const {
    for_each_row_panel(at.rows, [&](index_t, auto rows) {
      add<rows, Outs>(at, n, apart, lanes + n * lane_count, outs);
    });
  }

  /// The tables of output n; how many outputs from n on share them.
  template <class Number>
  index_t load_tables(tile_place const& at, index_t n) {
    weight_stack const& weights = args_.weights;
    part_row const place = part_row_of(weights, at.out_begin + n);
    index_t const block_rows = weights.layout().rows_per_scale(weights.part_rows());
    index_t const grid_row = place.row / block_rows;
    if (place.part != part_ || grid_row != grid_row_) {
      float scales[stream_blocks];
      index_t const blocks = ceil_div(depth_, block());
      load_scales(weights.part(place.part), at.expert, grid_row, 0, blocks, scales);
      for (index_t b = 0; b < blocks; ++b) tables_[b] = bf16_table::of<Number>(scales[b]);
      part_ = place.part;
      grid_row_ = grid_row;
    }
    index_t const end = std::min((grid_row + 1) * block_rows, weights.part_rows());
    return std::min(at.outs - n, end - place.row);
  }

  template <index_t Rows, index_t Outs>
  HWY_NOINLINE void add(tile_place const& at, index_t n, index_t apart, float* lanes,
                        index_t outs) const {
    std::uint8_t const* codes[Outs];
    f32_vector acc[Rows][Outs];
    for (index_t o = 0; o < Outs; ++o) {
      part_row const place = part_row_of(args_.weights, at.out_begin + n + o * apart);
      quantized_view const& matrix = args_.weights.part(place.part);
      codes[o] = HWY_NAMESPACE::at<std::uint8_t>(
          matrix.values().data, offset_of(matrix.values(), matrix.values_at(at.expert), place.row));
      for (index_t r = 0; r < Rows; ++r) acc[r][o] = hn::Zero(f32_tag{});
    }
    for (index_t b = 0, k = 0; k < depth_; ++b) {
      bf16_table const table = tables_[b];
      for (index_t const end = std::min(depth_, k + block()); k < end; k += 32) {
        for (index_t o = 0; o < Outs; ++o) {
          _mm_prefetch(codes[o] + k + prefetched, _MM_HINT_T0);
          two_vectors const weights = look_up(table, codes[o] + k);
          for (index_t r = 0; r < Rows; ++r) {
            f32_vector const low = hn::Load(f32_tag{}, x_ + r * depth_ + k);
            f32_vector const high = hn::Load(f32_tag{}, x_ + r * depth_ + k + lane_count);
            acc[r][o] = fused_multiply_add(low, weights.low, acc[r][o]);
            acc[r][o] = fused_multiply_add(high, weights.high, acc[r][o]);
          }
        }
      }
    }
    for (index_t r = 0; r < Rows; ++r) {
      for (index_t o = 0; o < Outs; ++o) {
        hn::Store(acc[r][o], f32_tag{}, lanes + (r * outs + o * apart) * lane_count);
      }
    }
  }

  /// Bytes ahead of use: prefetchers of processors end with the page.
  static constexpr index_t prefetched = 2048;

  alignas(64) float x_[stream_rows * stream_depth];
  bf16_table tables_[stream_blocks];
  grouped_gemm_args const& args_;
  index_t depth_;
  index_t grid_row_ = -1;
  int part_ = -1;
};

/// y of the rows and outputs of one task.
inline void stream_dots(grouped_gemm_args const& args, tile_place const& task) {
  weight_stream stream(args, task);
  dot_memory memory;
  for (index_t out = 0; out < task.outs; out += most_outs) {
    tile_place tile = task;
    tile.out_begin += out;
    tile.outs = std::min(most_outs, task.outs - out);
    finish_dots(args, tile, memory, [&](tile_place const& at, float* lanes, float*) {
      stream.multiply(at, lanes, round_up(tile.outs, out_granule));
    });
  }
}

#else

inline void stream_dots(grouped_gemm_args const&, tile_place const&) {}

#endif

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
