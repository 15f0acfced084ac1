#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/portable/grouped_gemm_wgrad_simd.cpp"
#include "cpu/simd/simd.hpp"
// after simd.hpp
#include "cpu/gemm/portable/codes.hpp"
#include "cpu/gemm/portable/outer.hpp"
#include "cpu/operations.hpp"
#include "cpu/runtime/expert_ranges.hpp"
#include "cpu/runtime/parallel.hpp"

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

inline constexpr index_t grad_outs = 80;
inline constexpr index_t grad_cols = 2 * lane_granule;
/// Rows of dy and x that are held at a time.
inline constexpr index_t grad_rows = 128;

/// Rows that are asked for before they are converted: their short runs lie far apart.
inline constexpr index_t rows_ahead = 12;

/// What one task works on: 118 KiB of stack.
struct grad_memory {
  alignas(64) float dy[grad_rows][grad_outs];
  alignas(64) float x[grad_rows][grad_cols];
  alignas(64) float acc[grad_outs][grad_cols];
};

/// Rows [out_begin, out_begin + outs) of one part, its columns [col_begin, col_begin + cols).
struct grad_place {
  tile_place rows;
  std::size_t part;
  index_t col_begin, cols;
};

/// One running sum per weight over the rows of the expert, in order.
static void sum_gradient(grouped_gemm_wgrad_args const& args, grad_place const& at) {
  grad_memory memory;
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const dy_begin = static_cast<index_t>(at.part) * part_rows + at.rows.out_begin;
  index_t const padded = round_up(at.cols, lane_granule);
  clear_run(memory.acc[0], 0, at.rows.outs * grad_cols);
  for (index_t r = 0; r < at.rows.rows; r += grad_rows) {
    index_t const rows = std::min(grad_rows, at.rows.rows - r);
    for (index_t i = 0; i < rows; ++i) {
      index_t const row = at.rows.row_begin + r + i;
      if (i + rows_ahead < rows) {
        prefetch_run(row_of(args.dy, row + rows_ahead), dy_begin, at.rows.outs);
        prefetch_run(row_of(args.x, row + rows_ahead), at.col_begin, at.cols);
      }
      load_run(row_of(args.dy, row), dy_begin, at.rows.outs, memory.dy[i]);
      load_run(row_of(args.x, row), at.col_begin, at.cols, memory.x[i]);
      clear_run(memory.x[i], at.cols, padded);
    }
    add_outer_tile(
        {memory.dy[0], 1, grad_outs, memory.x[0], grad_cols, rows, memory.acc[0], grad_cols},
        at.rows.outs, padded);
  }
  for (index_t n = 0; n < at.rows.outs; ++n) {
    // Without rows the sum is +0, whatever the sign of the factor.
    if (at.rows.rows > 0 && args.scaling != 1.0F)
      multiply_run(memory.acc[n], at.cols, args.scaling);
    store_run(row_of(args.d_weights[at.part], at.rows.expert, at.rows.out_begin + n), at.col_begin,
              at.cols, memory.acc[n]);
  }
}

static void sum_bias_gradient(grouped_gemm_wgrad_args const& args, std::size_t part,
                              tile_place const& at) {
  f32_tag const tag;
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const dy_begin = static_cast<index_t>(part) * part_rows + at.out_begin;
  alignas(64) float sum[grad_outs] = {};
  alignas(64) float run[grad_outs] = {};
  for (index_t r = at.row_begin; r < at.row_begin + at.rows; ++r) {
    load_run(row_of(args.dy, r), dy_begin, at.outs, run);
    for (index_t n = 0; n < grad_outs; n += vector_length) {
      hn::Store(hn::Add(hn::Load(tag, sum + n), hn::Load(tag, run + n)), tag, sum + n);
    }
  }
  store_run(row_of(args.d_bias[part], at.expert), at.out_begin, at.outs, sum);
}

void grouped_gemm_wgrad_simd(grouped_gemm_wgrad_args const& args, stream where);
void grouped_gemm_wgrad_simd(grouped_gemm_wgrad_args const& args, stream where) {
  ranges const begin = checked_ranges("grouped_gemm_wgrad", args.expert_begin, args.dy.extent[0]);
  index_t const experts = args.expert_begin.extent[0] - 1;
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const cols = args.x.present() ? args.x.extent[1] : 0;
  index_t const out_tiles = ceil_div(part_rows, grad_outs);
  // At least one, which also takes the bias.
  index_t const col_tiles = std::max<index_t>(1, ceil_div(cols, grad_cols));
  index_t const tiles = args.parts * out_tiles * col_tiles;
  parallel_for(where, experts * tiles, [&](index_t task) {
    index_t const expert = task / tiles;
    auto const part = static_cast<std::size_t>(task % tiles / (out_tiles * col_tiles));
    index_t const out_begin = task / col_tiles % out_tiles * grad_outs;
    index_t const col_begin = task % col_tiles * grad_cols;
    tile_place const rows = {expert, begin(expert), begin(expert + 1) - begin(expert), out_begin,
                             std::min(grad_outs, part_rows - out_begin)};
    if (args.d_weights[part].present() && col_begin < cols) {
      sum_gradient(args, {rows, part, col_begin, std::min(grad_cols, cols - col_begin)});
    }
    if (args.d_bias[part].present() && col_begin == 0) sum_bias_gradient(args, part, rows);
  });
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
