#pragma once

#include "cpu/quantize/quantize.hpp"
#include "cpu/runtime/parallel.hpp"

/// How the fast implementations of quantize walk through x: it is read twice, for the scales and
/// for the codes, and should still be in the second cache the second time.
namespace moe64::cpu {

/// Bytes of x that are taken at once.
inline constexpr index_t panel_bytes = index_t{1} << 19;
/// Blocks that a panel has at most; bounds the stack.
inline constexpr index_t panel_blocks = 256;

/// Blocks [first, first + count) of one grid row of one matrix.
struct panel {
  index_t expert, grid_row, row_begin, row_end, first, count, block_cols, col_end;
  index_t to_next;  ///< elements of x from here to the panel that follows; 0 if it has strides
};

/// visit(panel, global scale) for all panels of the call, and done() behind the last one of each
/// thread's share.
template <class Visit, class Done>
void for_each_panel(quantize_view const& p, index_t rows, stream where, Visit const& visit,
                    Done const& done) {
  quantize_args const& args = p.args;
  index_t const cols = p.x.extent[2];
  index_t const block_rows = args.layout.rows_per_scale(p.x.extent[1]);
  index_t const block_cols = args.layout.cols_per_scale(cols);
  index_t const grid_rows = ceil_div(rows, block_rows);
  index_t const grid_cols = ceil_div(cols, block_cols);
  index_t const fitting = panel_bytes / (bits(p.x.type) / 8) / block_rows / block_cols;
  index_t const at_once = std::clamp<index_t>(fitting, 1, panel_blocks);
  bool const has_global = args.global.values.present();
  bool const side_by_side = p.x.stride[2] == 1;
  index_t const grid_row_bytes =
      std::min(block_rows, rows) * cols * (bits(p.x.type) + bits(p.values.type)) / 8;
  parallel_ranges(
      where, p.x.extent[0] * grid_rows, grid_row_bytes, [&](index_t begin, index_t end) {
        for (index_t task = begin; task < end; ++task) {
          index_t const expert = task / grid_rows;
          index_t const grid_row = task % grid_rows;
          float const global = has_global ? load_number(args.global.values, expert) : 1.0F;
          index_t const row_begin = grid_row * block_rows;
          index_t const row_end = row_begin + std::min(block_rows, rows - row_begin);
          for (index_t first = 0; first < grid_cols; first += at_once) {
            index_t const count = std::min(at_once, grid_cols - first);
            index_t const col_end = first + count < grid_cols ? (first + count) * block_cols : cols;
            index_t const to_next =
                count < grid_cols ? count * block_cols : (row_end - row_begin) * p.x.stride[1];
            visit(panel{expert, grid_row, row_begin, row_end, first, count, block_cols, col_end,
                        side_by_side ? to_next : 0},
                  global);
          }
        }
        done();
      });
}

}  // namespace moe64::cpu
