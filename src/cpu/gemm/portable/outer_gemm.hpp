// grouped_gemm with transpose: outputs lie along lanes (portable/outer.hpp), so weights stored
// [rows, cols] are used as they lie. Included once per target, after simd.hpp.

#if defined(MOE64_CPU_GROUPED_GEMM_OUTER_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_GROUPED_GEMM_OUTER_SIMD_HPP
#undef MOE64_CPU_GROUPED_GEMM_OUTER_SIMD_HPP
#else
#define MOE64_CPU_GROUPED_GEMM_OUTER_SIMD_HPP
#endif

#include "cpu/gemm/epilogue.hpp"
#include "cpu/gemm/portable/outer.hpp"
#include "cpu/gemm/portable/weights.hpp"

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// Rows of the stack whose numbers are held at a time.
inline constexpr index_t outer_depth = 128;
/// Outputs of a tile.
inline constexpr index_t outer_outs = 2 * lane_granule;
/// Most rows of a task: their accumulators are kept over the whole depth, so weights are
/// dequantised once.
inline constexpr index_t outer_task_rows = 192;

/// What one task works on: 124 KiB of stack.
struct outer_memory {
  alignas(64) float weights[outer_depth][outer_outs];
  alignas(64) float x[outer_rows][outer_depth];
  alignas(64) float acc[outer_task_rows][outer_outs];
};

/// The weights of rows [begin, begin + depth) of the stack.
inline void load_outer(product const& p, tile_place const& at, index_t begin, index_t depth,
                       outer_memory& memory) {
  load_weights(p, {at.expert, begin, depth, at.out_begin, at.outs},
               {memory.weights[0], outer_outs});
  for (index_t k = 0; at.outs < outer_outs && k < depth; ++k) {
    clear_run(memory.weights[k], at.outs, outer_outs);
  }
}

/// acc [rows, outer_outs] += products of at most outer_rows rows with the loaded weights.
inline void add_outer_rows(product const& p, index_t row_begin, index_t rows, index_t begin,
                           index_t depth, outer_memory& memory, float* acc) {
  index_t const later = std::min(rows, p.x.rows() - (row_begin + rows));
  for (index_t i = 0; i < later; ++i) {
    prefetch_run(row_of(p.x.values(), 0, row_begin + rows + i), begin, depth);
  }
  for (index_t i = 0; i < rows; ++i) {
    load_run(row_of(p.x.values(), 0, row_begin + i), begin, depth, memory.x[i]);
  }
  add_outer_tile(
      {memory.x[0], outer_depth, 1, memory.weights[0], outer_outs, depth, acc, outer_outs}, rows,
      outer_outs);
}

/// y of a few rows from their accumulators and a low-rank term that is multiplied here.
inline void finish_outer(grouped_gemm_args const& args, product const& low_rank, bool loaded,
                         tile_place const& at, outer_memory& memory, float* acc) {
  alignas(64) float addends[outer_rows * outer_outs] = {};
  for (index_t begin = 0; begin < low_rank.depth(); begin += outer_depth) {
    index_t const depth = std::min(outer_depth, low_rank.depth() - begin);
    if (!loaded) load_outer(low_rank, at, begin, depth, memory);
    add_outer_rows(low_rank, at.row_begin, at.rows, begin, depth, memory, addends);
  }
  store_tile_simd(args, at, acc, addends, outer_outs);
}

/// y of the rows and outputs of one task.
inline void multiply_outer(grouped_gemm_args const& args, tile_place const& task) {
  outer_memory memory;
  product const main = {args.x, args.weights, true, args.x.type()};
  clear_run(memory.acc[0], 0, task.rows * outer_outs);
  for (index_t begin = 0; begin < main.depth(); begin += outer_depth) {
    index_t const depth = std::min(outer_depth, main.depth() - begin);
    load_outer(main, task, begin, depth, memory);
    for (index_t r = 0; r < task.rows; r += outer_rows) {
      add_outer_rows(main, task.row_begin + r, std::min(outer_rows, task.rows - r), begin, depth,
                     memory, memory.acc[r]);
    }
  }
  if (!args.low_rank.u.present()) {
    return store_tile_simd(args, task, memory.acc[0], nullptr, outer_outs);
  }
  quantized_view const u = quantized_view::plain(args.low_rank.u);
  product const addend = {u, args.low_rank.weights, true, dtype::f32};
  // A rank that fits is loaded once, any other once more for every few rows.
  bool const fits = addend.depth() <= outer_depth;
  if (fits) load_outer(addend, task, 0, addend.depth(), memory);
  for (index_t r = 0; r < task.rows; r += outer_rows) {
    tile_place at = task;
    at.row_begin += r;
    at.rows = std::min(outer_rows, task.rows - r);
    finish_outer(args, addend, fits, at, memory, memory.acc[r]);
  }
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
