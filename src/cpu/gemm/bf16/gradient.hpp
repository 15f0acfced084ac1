#pragma once

#include "cpu/gemm/bf16/outer.hpp"
#include "cpu/runtime/expert_ranges.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"
#include "moe64/ops.hpp"

/// Weight gradients as sums of bf16 outer products: rows of dy and x are taken two at a time. The
/// products themselves are an engine's:
///
///   struct engine {
///     /// left [pairs, outer_columns], of which `rows` columns are wanted, will be multiplied.
///     void take(std::uint32_t const (&left)[outer_pairs][outer_columns], index_t rows,
///               index_t pairs);
///     /// acc [rows, columns] += left times right.
///     void multiply(outer_accumulators& acc, index_t columns, pair_tile const& right) const;
///   };
namespace moe64::cpu::bf16 {

/// Rows of the gradient (columns of dy) of one task; whole groups of rows of both engines.
inline constexpr index_t gradient_rows = 96;
static_assert(gradient_rows <= outer_rows && gradient_rows <= outer_columns);

MOE64_BEGIN_AVX512_BF16

/// Rows [first, first + rows) of dy or x, [capacity, columns] bf16, as pairs: the columns [column,
/// column + columns) of a tile. Zeros up to a multiple of 64 columns and of 16 pairs, as engines
/// take them.
inline void read_row_pairs(tensor_view const& numbers, index_t first, index_t rows, index_t column,
                           index_t columns, std::uint32_t* tile) {
  index_t const padded = ceil_div(columns, index_t{64}) * 64;
  auto const* const data = static_cast<std::uint16_t const*>(numbers.data);
  alignas(64) std::uint16_t copies[2][outer_columns];
  for (index_t r = 0; r < rows; r += 2) {
    std::uint16_t const* both[2];
    for (index_t i = 0; i < 2; ++i) {
      both[i] = copies[i];
      if (r + i >= rows) {
        std::memset(copies[i], 0, sizeof(copies[i]));
        continue;
      }
      std::uint16_t const* const row = data + offset_of(numbers, first + r + i, column);
      if (padded == columns) {
        both[i] = row;
        continue;
      }
      for (index_t c = 0; c < padded; c += 32) {
        _mm512_store_si512(copies[i] + c,
                           _mm512_maskz_loadu_epi16(first_words(columns - c), row + c));
      }
    }
    interleave(both[0], both[1], padded, tile + r / 2 * outer_columns);
  }
  for (index_t pair = ceil_div(rows, index_t{2}); pair % 16 != 0; ++pair) {
    std::memset(tile + pair * outer_columns, 0, sizeof(*tile) * outer_columns);
  }
}

/// One run of a row of the gradient = factor * acc, rounded.
inline void store_gradient(row_view const& row, index_t begin, index_t count, float* acc,
                           float factor) {
  for (index_t i = 0; i < count; ++i) acc[i] *= factor;
  if (row.type != dtype::bf16 || row.stride != 1) return store_row(row, begin, count, acc);
  auto* const out = static_cast<std::uint16_t*>(row.data) + row.offset + begin;
  for (index_t i = 0; i < count; i += 32) {
    __m512i const packed = pack_bf16(_mm512_loadu_ps(acc + i), _mm512_loadu_ps(acc + i + 16));
    _mm512_mask_storeu_epi16(out + i, first_words(count - i), packed);
  }
}

/// Rows [at.out_begin, + at.outs) of one part of one expert's gradient.
template <class Engine>
void compute_gradient(grouped_gemm_wgrad_args const& args, std::size_t part, tile_place const& at) {
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const dy_column = static_cast<index_t>(part) * part_rows + at.out_begin;
  index_t const cols = args.x.extent[1];
  index_t const chunk = 2 * outer_pairs;
  alignas(64) std::uint32_t left[outer_pairs][outer_columns];
  pair_tile right;
  alignas(64) outer_accumulators acc;
  Engine engine;
  for (index_t column = 0; column < cols; column += outer_columns) {
    index_t const columns = std::min(outer_columns, cols - column);
    std::memset(acc, 0, sizeof(acc[0]) * gradient_rows);
    for (index_t first = 0; first < at.rows; first += chunk) {
      index_t const rows = std::min(chunk, at.rows - first);
      if (column == 0 || at.rows > chunk) {  // one chunk alone stays for all columns
        read_row_pairs(args.dy, at.row_begin + first, rows, dy_column, at.outs, &left[0][0]);
        engine.take(left, at.outs, ceil_div(rows, index_t{2}));
      }
      read_row_pairs(args.x, at.row_begin + first, rows, column, columns, &right.values[0][0]);
      engine.multiply(acc, columns, right);
    }
    for (index_t n = 0; n < at.outs; ++n) {
      // Without rows the sum is +0, whatever the sign of the factor.
      store_gradient(row_of(args.d_weights[part], at.expert, at.out_begin + n), column, columns,
                     acc[n], at.rows > 0 ? args.scaling : 1.0F);
    }
  }
}

MOE64_END_AVX512_BF16

/// The gradients of the weights, not those of the bias. `compute` is compute_gradient of an engine.
template <class Compute>
void for_each_gradient(grouped_gemm_wgrad_args const& args, stream where, Compute const& compute) {
  ranges const begin = checked_ranges("grouped_gemm_wgrad", args.expert_begin, args.dy.extent[0]);
  index_t const experts = args.expert_begin.extent[0] - 1;
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const row_tiles = ceil_div(part_rows, gradient_rows);
  parallel_for(where, experts * args.parts * row_tiles, [&](index_t task) {
    index_t const expert = task / (args.parts * row_tiles);
    auto const part = static_cast<std::size_t>(task / row_tiles % args.parts);
    index_t const out_begin = task % row_tiles * gradient_rows;
    if (!args.d_weights[part].present()) return;
    compute(part, tile_place{expert, begin(expert), begin(expert + 1) - begin(expert), out_begin,
                             std::min(gradient_rows, part_rows - out_begin)});
  });
}

}  // namespace moe64::cpu::bf16
