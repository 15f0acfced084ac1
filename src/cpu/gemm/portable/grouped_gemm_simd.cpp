#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/portable/grouped_gemm_simd.cpp"
#include "cpu/simd/simd.hpp"
// after simd.hpp
#include "cpu/gemm/portable/codes_gemm.hpp"
#include "cpu/gemm/portable/dot_gemm.hpp"
#include "cpu/gemm/portable/outer_gemm.hpp"
#include "cpu/gemm/portable/stream_gemm.hpp"
#include "cpu/runtime/expert_tasks.hpp"
#include "cpu/runtime/parallel.hpp"

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// How the rows of one expert and its outputs are cut into tasks. A task takes several tiles where
/// rows are few; every output lies wholly inside one task.
struct gemm_cut {
  index_t outs, tile, most_rows;

  [[nodiscard]] index_t chunks(index_t rows) const { return ceil_div(rows, most_rows); }
  [[nodiscard]] index_t chunk_rows(index_t rows) const { return ceil_div(rows, chunks(rows)); }
  [[nodiscard]] index_t task_outs(index_t rows) const {
    return tile * std::clamp<index_t>(32 / rows, 1, 8);
  }
  [[nodiscard]] index_t operator()(index_t rows) const {
    return rows > 0 ? chunks(rows) * ceil_div(outs, task_outs(rows)) : 0;
  }
};

static void multiply_tile(grouped_gemm_args const& args, tile_place const& tile) {
  if (args.transpose) return multiply_outer(args, tile);
  if (args.x.is_plain()) return multiply_dots(args, tile);
  return multiply_codes(args, tile);
}

void grouped_gemm_simd(grouped_gemm_args const& args, stream where);
void grouped_gemm_simd(grouped_gemm_args const& args, stream where) {
  checked_ranges("grouped_gemm", args.expert_begin, args.x.rows());
  index_t const outs = args.y.extent[1];
  gemm_cut const cut = args.transpose
                           ? gemm_cut{outs, outer_outs, outer_task_rows}
                           : gemm_cut{outs, dot_tile_outs(args.weights.cols()), dot_task_rows};
  expert_tasks const tasks(args.expert_begin, cut);
  parallel_for(where, tasks.count(), [&](index_t number) {
    expert_tasks::place const mine = tasks.at(number, cut);
    index_t const chunks = cut.chunks(mine.rows);
    index_t const row = mine.task % chunks * cut.chunk_rows(mine.rows);
    tile_place task = {mine.expert, mine.first_row + row,
                       std::min(cut.chunk_rows(mine.rows), mine.rows - row),
                       mine.task / chunks * cut.task_outs(mine.rows), 0};
    index_t const end = std::min(outs, task.out_begin + cut.task_outs(mine.rows));
    if (task.rows <= 0) return;
    if (takes_stream(args, task.rows)) {
      task.outs = end - task.out_begin;
      return stream_dots(args, task);
    }
    for (; task.out_begin < end; task.out_begin += cut.tile) {
      task.outs = std::min(cut.tile, end - task.out_begin);
      multiply_tile(args, task);
    }
  });
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
