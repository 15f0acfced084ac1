// y = x W with sums of bf16 outer products: rows of weights are read as bf16, two at a time.

#include "cpu/gemm/bf16/grouped_gemm_bf16.hpp"
#include "cpu/gemm/bf16/outer.hpp"
#include "cpu/gemm/bf16/weights.hpp"
#include "cpu/gemm/epilogue.hpp"
#include "cpu/runtime/expert_tasks.hpp"
#include "cpu/runtime/parallel.hpp"

namespace moe64::cpu::bf16 {

MOE64_BEGIN_AVX512_BF16

namespace {

/// acc += x [1, rows, depth] times the weights of an expert, for the columns of a tile.
/// `next_column` is where the task begins that this thread will probably compute next.
void multiply(tensor_view const& x, weight_stack const& weights, tile_place const& at,
              index_t next_column, pair_tile& tile, outer_accumulators& acc) {
  weight_reader reader(weights, at.expert);
  index_t const depth = weights.rows();
  auto const* const first_row =
      static_cast<std::uint16_t const*>(x.data) + offset_of(x, 0, at.row_begin);
  pair_source const left = {first_row, x.stride[1] * index_t{sizeof(std::uint16_t)},
                            sizeof(std::uint32_t)};
  index_t const whole = depth / 2;
  for (index_t first = 0; first < whole; first += outer_pairs) {
    index_t const pairs = std::min(outer_pairs, whole - first);
    read_pairs(reader, depth, first, pairs, at.out_begin, at.outs, tile);
    index_t const next = 2 * (first + pairs);
    bool const last = next >= depth && next_column < weights.cols();
    line_cursor const ahead =
        last ? lines_from(weights, at.expert, 0, next_column,
                          std::min(outer_columns, weights.cols() - next_column))
             : lines_from(weights, at.expert, next, at.out_begin, at.outs);
    multiply_outer(acc, at.rows, at.outs, left.from(0, first), tile, pairs, ahead,
                   std::min(2 * outer_pairs, last ? depth : depth - next));
  }
  if (depth % 2 == 0) return;
  // The last row of weights has no partner, and neither have the last numbers of x.
  std::uint32_t last[outer_rows];
  for (index_t r = 0; r < at.rows; ++r) last[r] = first_row[r * x.stride[1] + depth - 1];
  read_pairs(reader, depth, whole, 1, at.out_begin, at.outs, tile);
  multiply_outer(acc, at.rows, at.outs, {last, sizeof(std::uint32_t), 0}, tile, 1);
}

void compute_block(grouped_gemm_args const& args, tile_place const& at, index_t next_column,
                   pair_tile& tile) {
  alignas(64) outer_accumulators acc;
  std::memset(acc, 0, static_cast<std::size_t>(at.rows) * sizeof(acc[0]));
  index_t const outs = args.y.extent[1];
  if (args.low_rank.u.present()) {
    // The accumulators begin with the low-rank addend.
    multiply(args.low_rank.u.as_stack(), args.low_rank.weights, at, outs, tile, acc);
    for (index_t r = 0; r < at.rows; ++r) {
      for (float& value : acc[r]) value *= args.low_rank.scaling;
    }
  }
  multiply(args.x.values(), args.weights, at, next_column, tile, acc);
  N_AVX3::store_tile_simd(args, at, &acc[0][0], nullptr, outer_columns);
}

}  // namespace

void grouped_gemm_outer(grouped_gemm_args const& args, stream where) {
  static_cast<void>(checked_ranges("grouped_gemm", args.expert_begin, args.x.rows()));
  index_t const outs = args.y.extent[1];
  auto const strips = [&](index_t rows) { return rows == 0 ? 0 : ceil_div(outs, outer_columns); };
  expert_tasks const tasks(args.expert_begin, strips);
  index_t const ahead = concurrency_of(where) * outer_columns;
  parallel_for(where, tasks.count(), [&](index_t task) {
    auto const [expert, first_row, rows, strip] = tasks.at(task, strips);
    index_t const column = strip * outer_columns;
    index_t const panel_rows = ceil_div(rows, ceil_div(rows, outer_rows));
    pair_tile tile;
    for (index_t row = 0; row < rows; row += panel_rows) {
      compute_block(args,
                    {expert, first_row + row, std::min(panel_rows, rows - row), column,
                     std::min(outer_columns, outs - column)},
                    column + ahead, tile);
    }
  });
}

MOE64_END_AVX512_BF16

}  // namespace moe64::cpu::bf16
