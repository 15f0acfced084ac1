#pragma once

#include "core/number.hpp"
#include "cpu/quantize/quantize.hpp"
#include "cpu/runtime/rows.hpp"

#include <algorithm>

/// Rows that an operation quantises on the way: their numbers never lie in memory.
namespace moe64::cpu {

/// Codes [rows, cols] and scales [rows, grid_cols] of a granularity row or group.
struct row_codes {
  tensor_view codes, scales;
  granularity layout;
};

/// Codes and scales of one row. load(col, count, run) gives its numbers [col, col + count) as f32
/// that are already rounded to the type which they would have in memory; at most run_length of
/// them. A block that is longer is loaded twice.
template <class Load>
void quantize_row(row_codes const& to, index_t row, Load const& load) {
  index_t const cols = to.codes.extent[1];
  index_t const block_cols = to.layout.cols_per_scale(cols);
  float const limit = largest_code(to.codes.type);
  float run[run_length];
  for (index_t begin = 0, grid_col = 0; begin < cols; begin += block_cols, ++grid_col) {
    index_t const end = begin + std::min(block_cols, cols - begin);
    magnitude size;
    for (index_t col = begin; col < end; col += run_length) {
      index_t const count = std::min(run_length, end - col);
      load(col, count, run);
      size.add(run, count);
    }
    float const factor =
        write_scale({to.scales.as_stack(), to.codes.type}, size, 1.0F, 0, row, grid_col);
    for (index_t col = begin; col < end; col += run_length) {
      index_t const count = std::min(run_length, end - col);
      if (end - begin > run_length) load(col, count, run);
      divide_numbers(run, count, factor, limit);
      store_row(row_of(to.codes, row), col, count, run);
    }
  }
}

}  // namespace moe64::cpu
