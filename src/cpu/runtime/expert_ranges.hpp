#pragma once

#include "core/fail.hpp"
#include "core/view.hpp"
#include "moe64/quant.hpp"

#include <algorithm>

/// What every grouped GEMM agrees on: whose rows are whose, what a tile is, and which columns of
/// quantised operands share both scales.
namespace moe64::cpu {

using ranges = view<std::int64_t, 1>;

/// The ranges of the experts, after a look that they are what they must be: a wrong one would write
/// anywhere.
inline ranges checked_ranges(char const* operation, tensor_view const& expert_begin,
                             index_t capacity) {
  auto const begin = as<std::int64_t, 1>(expert_begin);
  index_t const experts = expert_begin.extent[0] - 1;
  bool legal = begin(0) == 0 && begin(experts) <= capacity;
  for (index_t e = 0; e < experts; ++e) legal = legal && begin(e) <= begin(e + 1);
  if (!legal) {
    fail(errc::invalid_argument,
         "[{}] expert_begin does not rise from 0 to at most {} (rows of the operands)", operation,
         capacity);
  }
  return begin;
}

/// Rows of y and outputs (columns of y) of one tile.
struct tile_place {
  index_t expert, row_begin, rows, out_begin, outs;
};

/// Zeros in place of elements [begin, end) of a run.
inline void clear_run(float* run, index_t begin, index_t end) {
  if (begin < end) std::fill(run + begin, run + end, 0.0F);
}

/// Ask for elements [begin, begin + count) of a run that is used soon; strided ones are not worth
/// it. A run may end before that.
inline void prefetch_run(row_view const& row, index_t begin, index_t count) {
  if (row.stride != 1 || count <= 0) return;
  auto const* const data = static_cast<std::uint8_t const*>(row.data);
  auto const byte = [&](index_t i) { return (row.offset + i) * bits(row.type) / 8; };
  index_t const last = byte(begin + count - 1);
  for (index_t at = byte(begin); at < last; at += 64) __builtin_prefetch(data + at);
  __builtin_prefetch(data + last);
}

[[nodiscard]] constexpr index_t round_up(index_t count, index_t granule) {
  return ceil_div(count, granule) * granule;
}

/// One product of x rows by one side of a stack: what tiles are loaded from.
struct product {
  quantized_view const& x;
  weight_stack const& weights;
  bool transpose;
  dtype weights_as;  ///< quantised weights are rounded to this type; f32: not at all

  [[nodiscard]] index_t depth() const { return transpose ? weights.rows() : weights.cols(); }
};

/// A row of a stack: which part it belongs to, and which row of that part it is.
struct part_row {
  int part;
  index_t row;
};
[[nodiscard]] inline part_row part_row_of(weight_stack const& weights, index_t row) {
  int const part = row < weights.part_rows() ? 0 : 1;
  return {part, row - part * weights.part_rows()};
}

/// Most columns whose codes are added before they are scaled: where FP8 hardware promotes its sums
/// to f32.
inline constexpr index_t promotion = 128;

/// Where the run of columns ends that starts at `begin` and shares both scales.
[[nodiscard]] inline index_t segment_end(index_t begin, index_t depth, index_t x_block,
                                         index_t weight_block) {
  auto const next = [&](index_t block) { return (begin / block + 1) * block; };
  return std::min({depth, next(promotion), next(x_block), next(weight_block)});
}

}  // namespace moe64::cpu
