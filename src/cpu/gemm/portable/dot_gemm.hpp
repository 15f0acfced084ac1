// grouped_gemm without transpose: the depth lies along lanes (portable/dot.hpp). Included once per
// target, after simd.hpp.

#if defined(MOE64_CPU_GROUPED_GEMM_DOT_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_GROUPED_GEMM_DOT_SIMD_HPP
#undef MOE64_CPU_GROUPED_GEMM_DOT_SIMD_HPP
#else
#define MOE64_CPU_GROUPED_GEMM_DOT_SIMD_HPP
#endif

#include "cpu/gemm/epilogue.hpp"
#include "cpu/gemm/portable/dot.hpp"
#include "cpu/gemm/portable/weights.hpp"

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// Columns that the micro-kernel takes at a time. Wide registers hold accumulators long enough that
/// weights can come from the second cache; narrow ones want them in the first.
inline constexpr index_t depth_block = HWY_TARGET == HWY_AVX3 ? 1024 : 512;
inline constexpr index_t depth_block_in_place = 4096;
/// Columns of a tile that is used for one panel of rows only: it stays in the first cache.
inline constexpr index_t depth_block_once = 512;
/// Most rows of a task: their x stays in the second cache while tiles of outputs follow each other.
inline constexpr index_t dot_task_rows = 256;
/// Most outputs of one tile.
inline constexpr index_t most_outs = 24;

inline constexpr index_t weight_floats = 24 * 1024;
inline constexpr index_t low_rank_floats = 2 * 1024;
inline constexpr index_t lane_floats = 2 * 1024;

/// What one task works on besides 96 KiB of weights: 32 KiB of stack.
struct dot_memory {
  alignas(64) float low_rank[low_rank_floats];
  alignas(64) float lanes[lane_floats];
  alignas(64) float x[dot_rows * depth_block];
};

/// Rows whose lanes are held at a time.
[[nodiscard]] constexpr index_t rows_at_a_time(index_t outs) {
  return lane_floats / (outs * lane_count) / dot_rows * dot_rows;
}
static_assert(rows_at_a_time(most_outs) >= dot_rows);

/// The weights of a tile's outputs, [outs, columns] f32, as many columns as fit. When all fit they
/// are loaded once for all rows; otherwise once more for every panel of rows.
struct dot_panel {
  product const& of;
  float* values;
  index_t outs;     ///< multiple of out_granule
  index_t columns;  ///< multiple of lane_count
  bool whole;

  dot_panel(product const& p, float* memory, index_t floats, index_t padded_outs)
      : of(p),
        values(memory),
        outs(padded_outs),
        columns(std::min(round_up(p.depth(), lane_count),
                         floats / padded_outs / lane_count * lane_count)),
        whole(p.depth() <= columns) {}

  void load(tile_place const& at, index_t begin, index_t count) const {
    index_t const padded = round_up(count, lane_count);
    load_weights(of, {at.expert, at.out_begin, at.outs, begin, count}, {values, columns});
    for (index_t n = 0; n < outs; ++n) {
      clear_run(values + n * columns, n < at.outs ? count : 0, padded);
    }
  }
};

/// Rows of x that the micro-kernel reads as they lie: adjacent bf16 numbers, whole lanes.
inline bool is_read_in_place(tensor_view const& x, index_t count) {
  return HWY_TARGET == HWY_AVX3 && x.type == dtype::bf16 && x.stride[2] == 1 &&
         count % lane_count == 0;
}

/// lanes [at.rows, outs, 16] += products of the rows of the tile.
inline void add_panel(dot_panel const& panel, tile_place const& at, float* lanes, float* memory) {
  index_t const depth = panel.of.depth();
  tensor_view const& x = panel.of.x.values();
  for (index_t first = 0; first < depth; first += panel.columns) {
    index_t const columns = std::min(panel.columns, depth - first);
    if (!panel.whole) panel.load(at, first, columns);
    bool const in_place = is_read_in_place(x, columns);
    index_t const step = in_place ? depth_block_in_place : depth_block;
    for (index_t begin = 0; begin < columns; begin += step) {
      index_t const count = std::min(step, columns - begin);
      index_t const padded = round_up(count, lane_count);
      for_each_row_panel(at.rows, [&](index_t r, auto rows) {
        micro_tile b = {memory,        0,
                        padded,        nullptr,
                        panel.columns, padded / lane_count,
                        nullptr,       panel.outs * lane_count};
        if (in_place) {
          b.x = x.data;
          b.x_offset = offset_of(x, 0, at.row_begin + r, first + begin);
          b.x_stride = x.stride[1];
        }
        for (index_t i = 0; !in_place && i < rows; ++i) {
          load_run(row_of(x, 0, at.row_begin + r + i), first + begin, count, memory + i * padded);
          clear_run(memory + i * padded, count, padded);
        }
        for (index_t n = 0; n < panel.outs; n += dot_outs) {
          b.weights = panel.values + n * panel.columns + begin;
          b.lanes = lanes + (r * panel.outs + n) * lane_count;
          if (in_place) {
            add_dots<bf16_number, rows>(b);
          } else {
            add_dots<f32_number, rows>(b);
          }
        }
      });
    }
  }
}

/// Outputs of a tile over this depth: as many as can be held whole, but at least 6 and at most 24.
[[nodiscard]] inline index_t dot_tile_outs(index_t depth) {
  index_t const fit = weight_floats / std::max(round_up(depth, lane_count), lane_count);
  return std::clamp(fit / out_granule * out_granule, out_granule, most_outs);
}

/// y of the rows and outputs of one task; add_main(tile, lanes, x) adds the products of its rows.
template <class AddMain>
void finish_dots(grouped_gemm_args const& args, tile_place const& task, dot_memory& memory,
                 AddMain const& add_main) {
  index_t const outs = round_up(task.outs, out_granule);
  bool const low_rank = args.low_rank.u.present();
  quantized_view const u = low_rank ? quantized_view::plain(args.low_rank.u) : quantized_view{};
  product const addend = {u, args.low_rank.weights, false, dtype::f32};
  dot_panel const panel(addend, memory.low_rank, low_rank_floats, outs);
  if (low_rank && panel.whole) panel.load(task, 0, addend.depth());

  index_t const pass_rows = rows_at_a_time(outs);
  for (index_t r = 0; r < task.rows; r += pass_rows) {
    tile_place at = task;
    at.row_begin += r;
    at.rows = std::min(pass_rows, task.rows - r);
    alignas(64) float acc[lane_floats / lane_count];
    alignas(64) float addends[lane_floats / lane_count];
    clear_run(memory.lanes, 0, at.rows * outs * lane_count);
    add_main(at, memory.lanes, memory.x);
    fold_lanes(memory.lanes, at.rows * outs, acc);
    if (low_rank) {
      clear_run(memory.lanes, 0, at.rows * outs * lane_count);
      add_panel(panel, at, memory.lanes, memory.x);
      fold_lanes(memory.lanes, at.rows * outs, addends);
    }
    store_tile_simd(args, at, acc, low_rank ? addends : nullptr, outs);
  }
}

/// Plain x.
inline void multiply_dots(grouped_gemm_args const& args, tile_place const& task) {
  alignas(64) float weights[weight_floats];
  dot_memory memory;
  product const main = {args.x, args.weights, false, args.x.type()};
  index_t const outs = round_up(task.outs, out_granule);
  bool const once = task.rows <= rows_at_a_time(outs);
  index_t const floats = once ? std::min(weight_floats, depth_block_once * outs) : weight_floats;
  dot_panel const panel(main, weights, floats, outs);
  if (panel.whole) panel.load(task, 0, main.depth());
  finish_dots(args, task, memory, [&](tile_place const& at, float* lanes, float* x) {
    add_panel(panel, at, lanes, x);
  });
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
