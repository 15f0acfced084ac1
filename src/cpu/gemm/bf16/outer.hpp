#pragma once

#include "cpu/gemm/bf16/pairs.hpp"

#include <cstring>

/// Sums of outer products of bf16 vectors with the processor's bf16 arithmetic: each output has one
/// running sum, to which the terms are added two at a time in ascending order. What is summed over
/// lies across the rows of the right-hand side, so that weights need no transposing.
namespace moe64::cpu::bf16 {

/// Rows whose accumulators are kept while the tiles of the right-hand side go by.
inline constexpr index_t outer_rows = 192;

using outer_accumulators = float[outer_rows][outer_columns];

/// The left-hand side: the pair of summands p of row r at data + r * row + p * pair (bytes).
struct pair_source {
  void const* data;
  index_t row, pair;

  [[nodiscard]] int at(index_t r, index_t p) const {
    int both;
    std::memcpy(&both, static_cast<char const*>(data) + r * row + p * pair, sizeof(both));
    return both;
  }
  [[nodiscard]] pair_source from(index_t r, index_t p) const {
    return {static_cast<char const*>(data) + r * row + p * pair, row, pair};
  }
};

MOE64_BEGIN_AVX512_BF16

/// acc [Rows, 64] += left times right over `pairs` pairs. Meanwhile `lines` lines of `ahead` are
/// asked for, evenly spread.
template <std::size_t Rows>
inline void accumulate_outer(float* acc, pair_source left, std::uint32_t const* right,
                             index_t pairs, line_cursor& ahead, index_t lines) {
  __m512 lanes[Rows][4];
  repeat<Rows>([&](auto r) MOE64_INLINE {
    repeat<4>([&](auto n) MOE64_INLINE {
      lanes[r][n] = _mm512_loadu_ps(acc + index_t{r} * outer_columns + index_t{n} * 16);
    });
  });
  index_t const pieces = std::clamp<index_t>(lines, 1, pairs);
  index_t const piece = ceil_div(pairs, pieces);
  for (index_t p = 0; p < pairs;) {
    for (index_t line = 0; line < lines; line += pieces) ahead.prefetch();
    for (index_t const end = std::min(pairs, p + piece); p < end; ++p) {
      __m512i numbers[4];
      repeat<4>([&](auto n) MOE64_INLINE {
        numbers[n] = _mm512_load_si512(right + p * outer_columns + index_t{n} * 16);
      });
      repeat<Rows>([&](auto r) MOE64_INLINE {
        __m512i const both = _mm512_set1_epi32(left.at(index_t{r}, p));
        repeat<4>([&](auto n) MOE64_INLINE {
          lanes[r][n] = _mm512_dpbf16_ps(lanes[r][n], as_bf16(both), as_bf16(numbers[n]));
        });
      });
    }
  }
  repeat<Rows>([&](auto r) MOE64_INLINE {
    repeat<4>([&](auto n) MOE64_INLINE {
      _mm512_storeu_ps(acc + index_t{r} * outer_columns + index_t{n} * 16, lanes[r][n]);
    });
  });
}

/// acc [rows, columns] += left times right, both from pair 0 on. Meanwhile the lines of `later`
/// rows of `ahead` are on their way.
inline void multiply_outer(outer_accumulators& acc, index_t rows, index_t columns, pair_source left,
                           pair_tile const& right, index_t pairs, line_cursor ahead = {},
                           index_t later = 0) {
  constexpr index_t largest_group = 6;
  // Groups of nearly equal size: a small one at the end could not keep the multipliers busy.
  index_t const groups = ceil_div(rows, largest_group);
  index_t const calls = groups * ceil_div(columns, index_t{64});
  index_t const lines = ceil_div(ahead.row_lines * later, calls);
  // A half of the tile goes by as a whole: both would not fit into the first cache.
  for (index_t c = 0; c < columns; c += 64) {
    for (index_t group = 0; group < groups; ++group) {
      index_t const r = group * rows / groups;
      pair_source const here = left.from(r, 0);
      float* const out = &acc[r][c];
      std::uint32_t const* const tile = &right.values[0][c];
      switch ((group + 1) * rows / groups - r) {
        case 1:
          accumulate_outer<1>(out, here, tile, pairs, ahead, lines);
          break;
        case 2:
          accumulate_outer<2>(out, here, tile, pairs, ahead, lines);
          break;
        case 3:
          accumulate_outer<3>(out, here, tile, pairs, ahead, lines);
          break;
        case 4:
          accumulate_outer<4>(out, here, tile, pairs, ahead, lines);
          break;
        case 5:
          accumulate_outer<5>(out, here, tile, pairs, ahead, lines);
          break;
        default:
          accumulate_outer<largest_group>(out, here, tile, pairs, ahead, lines);
      }
    }
  }
}

MOE64_END_AVX512_BF16

}  // namespace moe64::cpu::bf16
