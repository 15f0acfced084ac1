// y = x W^T with bf16 dot products: weights are read once per tile as bf16 and multiplied with all
// rows of the expert; few rows take the weights straight from their codes.

#include "cpu/gemm/bf16/grouped_gemm_bf16.hpp"

#include "cpu/gemm/bf16/dot.hpp"
#include "cpu/gemm/bf16/weights.hpp"
#include "cpu/gemm/epilogue.hpp"
#include "cpu/runtime/expert_tasks.hpp"
#include "cpu/runtime/parallel.hpp"

namespace moe64::cpu::bf16 {

MOE64_BEGIN_AVX512_BF16

namespace {

/// Outputs of one task.
constexpr index_t task_outs = 128;
/// Outputs whose weights are dequantised at a time: with 2,048 columns they stay in a cache of 32
/// KiB while the rows of x stream past.
constexpr index_t tile_outs = 4;
/// Rows of x that are multiplied with one tile before the next tile is dequantised: with 2,048
/// columns they stay in a cache of 1 MiB.
constexpr index_t rows_at_once = 192;
/// When the depth needs several tiles, that many rows keep their lanes between them.
constexpr index_t carried_rows = 32;

/// Dequantised weights; the odd stride keeps rows out of each other's cache sets.
struct weight_tile {
  static constexpr index_t stride = depth_tile + 32;
  alignas(64) std::uint16_t values[tile_outs * stride];

  [[nodiscard]] row_panel rows() const { return {values, stride}; }
};

using task_accumulators = float[rows_at_once][task_outs];

/// One product of a call, and the reader of its weights.
struct product {
  tensor_view x;  ///< [1, rows, depth] bf16
  weight_stack const& weights;
  weight_reader reader;

  product(tensor_view const& left, weight_stack const& right, index_t expert)
      : x(left), weights(right), reader(right, expert) {}
};

void read_tile(product& p, tile_place const& at, index_t begin, index_t depth, weight_tile& tile) {
  for (index_t n = 0; n < tile_outs; ++n) {
    std::uint16_t* const row = tile.values + n * weight_tile::stride;
    if (n < at.outs) {
      p.reader.read(at.out_begin + n, begin, depth, row);
    } else {
      std::fill_n(row, ceil_div(depth, index_t{64}) * 64, std::uint16_t{0});
    }
  }
}

/// acc [rows, task_outs] = x times the weights of one tile's outputs, where the depth is that of
/// one tile. Meanwhile the weights of tile `later_out` are on their way.
void multiply_tile(product& p, tile_place const& at, index_t later_out, weight_tile& tile,
                   float* acc) {
  index_t const depth = p.weights.cols();
  line_cursor ahead = lines_from(p.weights, at.expert, later_out, 0, depth);
  index_t const lines = ceil_div(ahead.row_lines * tile_outs, ceil_div(at.rows, index_t{4}));
  read_tile(p, at, 0, depth, tile);
  for (index_t row = 0; row < at.rows; row += 4) {
    with_rows(at.rows - row, [&](auto rows) {
      multiply<rows.value>(rows_of(p.x, at.row_begin + row), tile.rows(), depth,
                           acc + row * task_outs, task_outs, ahead, lines);
    });
  }
}

/// The same for a depth of several tiles: the lanes of some rows are carried from tile to tile.
void multiply_deep(product& p, tile_place const& at, weight_tile& tile, float* acc) {
  index_t const depth = p.weights.cols();
  for (index_t first = 0; first < at.rows; first += carried_rows) {
    index_t const rows_here = std::min(carried_rows, at.rows - first);
    dot_lanes lanes[carried_rows / 4] = {};
    for (index_t begin = 0; begin < depth; begin += depth_tile) {
      index_t const length = std::min(depth_tile, depth - begin);
      read_tile(p, at, begin, length, tile);
      for (index_t row = 0; row < rows_here; row += 4) {
        row_panel x = rows_of(p.x, at.row_begin + first + row);
        x.data += begin;
        with_rows(rows_here - row,
                  [&](auto rows) { carry<rows.value>(lanes[row / 4], x, tile.rows(), length); });
      }
    }
    for (index_t row = 0; row < rows_here; row += 4) {
      with_rows(rows_here - row, [&](auto rows) {
        store_dots<rows.value>(lanes[row / 4], acc + (first + row) * task_outs, task_outs);
      });
    }
  }
}

/// acc = x times the weights of a task's outputs, for a panel of rows.
void multiply_panel(product& p, tile_place const& panel, index_t next_task, weight_tile& tile,
                    task_accumulators& acc) {
  for (index_t n = 0; n < panel.outs; n += tile_outs) {
    tile_place const at = {panel.expert, panel.row_begin, panel.rows, panel.out_begin + n,
                           std::min(tile_outs, panel.outs - n)};
    bool const last = n + tile_outs >= panel.outs;
    if (p.weights.cols() > depth_tile) {
      multiply_deep(p, at, tile, &acc[0][n]);
    } else {
      multiply_tile(p, at, last ? next_task : at.out_begin + tile_outs, tile, &acc[0][n]);
    }
  }
}

/// The outputs of a task, tile by tile, a panel of rows at a time.
void compute_tiles(grouped_gemm_args const& args, tile_place const& task, index_t next_task) {
  bool const low_rank = args.low_rank.u.present();
  product main(args.x.values(), args.weights, task.expert);
  weight_tile tile;
  alignas(64) task_accumulators acc;
  alignas(64) task_accumulators addend;
  index_t const panels = ceil_div(task.rows, rows_at_once);
  index_t const panel_rows = ceil_div(task.rows, panels * 4) * 4;
  for (index_t row = 0; row < task.rows; row += panel_rows) {
    tile_place const at = {task.expert, task.row_begin + row, std::min(panel_rows, task.rows - row),
                           task.out_begin, task.outs};
    multiply_panel(main, at, next_task, tile, acc);
    if (low_rank) {
      product thin(args.low_rank.u.as_stack(), args.low_rank.weights, task.expert);
      multiply_panel(thin, at, args.low_rank.weights.rows(), tile, addend);
    }
    N_AVX3::store_tile_simd(args, at, &acc[0][0], low_rank ? &addend[0][0] : nullptr, task_outs);
  }
}

}  // namespace

void grouped_gemm_dots(grouped_gemm_args const& args, stream where) {
  static_cast<void>(checked_ranges("grouped_gemm", args.expert_begin, args.x.rows()));
  index_t const outs = args.y.extent[1];
  index_t const few_outs = outs_of_few(args, where);
  auto const is_few = [&](index_t rows) { return few_outs > 0 && rows <= few_rows; };
  auto const width = [&](index_t rows) { return is_few(rows) ? few_outs : task_outs; };
  auto const pieces = [&](index_t rows) { return rows == 0 ? 0 : ceil_div(outs, width(rows)); };
  expert_tasks const tasks(args.expert_begin, pieces);
  index_t const ahead = concurrency_of(where) * task_outs;
  parallel_for(where, tasks.count(), [&](index_t task) {
    auto const [expert, first_row, rows, piece] = tasks.at(task, pieces);
    index_t const out_begin = piece * width(rows);
    tile_place const at = {expert, first_row, rows, out_begin,
                           std::min(width(rows), outs - out_begin)};
    is_few(rows) ? compute_few(args, at) : compute_tiles(args, at, out_begin + ahead);
  });
}

MOE64_END_AVX512_BF16

void grouped_gemm(grouped_gemm_args const& args, stream where) {
  args.transpose ? grouped_gemm_outer(args, where) : grouped_gemm_dots(args, where);
}

}  // namespace moe64::cpu::bf16
