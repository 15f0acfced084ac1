#pragma once

#include "cpu/bf16_weights.hpp"

#include <cstring>

/// Sums of outer products of bf16 vectors with the processor's bf16 arithmetic: each output has one
/// running sum, to which the terms are added two at a time in ascending order. What is summed over
/// lies across the rows of the right-hand side, so that weights need no transposing.
namespace moe64::cpu::bf16 {

/// Columns of one tile, and pairs of summands that are decoded at a time.
inline constexpr index_t outer_columns = 128;
inline constexpr index_t outer_pairs = 128;
/// Rows whose sums are kept while the tiles of the right-hand side go by.
inline constexpr index_t outer_rows = 192;

/// The right-hand side: [pairs, columns] of two neighbouring summands each.
struct pair_tile {
  alignas(64) std::uint32_t values[outer_pairs][outer_columns];
};

using outer_sums = float[outer_rows][outer_columns];

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

/// out[i] = (even[i], odd[i]) for i in [0, count), count a multiple of 32.
inline void interleave(std::uint16_t const* even, std::uint16_t const* odd, index_t count,
                       std::uint32_t* out) {
  // Words i and 32 + i are element i of the two rows.
  __m512i const low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  __m512i const high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (index_t i = 0; i < count; i += 32) {
    __m512i const a = _mm512_loadu_si512(even + i);
    __m512i const b = _mm512_loadu_si512(odd + i);
    _mm512_storeu_si512(out + i, _mm512_permutex2var_epi16(a, low, b));
    _mm512_storeu_si512(out + i + 16, _mm512_permutex2var_epi16(a, high, b));
  }
}

/// Weight rows from 2 * first on, in the columns of a tile; zeros past the last row.
inline void read_pairs(weight_reader& reader, index_t depth, index_t first, index_t pairs,
                       index_t column, index_t columns, pair_tile& tile) {
  constexpr index_t rows_at_once = 16;
  alignas(64) std::uint16_t rows[rows_at_once][outer_columns];
  index_t const padded = ceil_div(columns, index_t{64}) * 64;
  for (index_t p = 0; p < pairs; p += rows_at_once / 2) {
    index_t const row = 2 * (first + p);
    index_t const wanted = std::min(rows_at_once, 2 * (pairs - p));
    index_t const there = std::min(wanted, depth - row);
    if (!reader.read_narrow(row, there, column, columns, [&](index_t i) { return rows[i]; })) {
      for (index_t i = 0; i < there; ++i) reader.read(row + i, column, columns, rows[i]);
    }
    if (there < wanted) std::memset(rows[there], 0, sizeof(rows[0]));
    for (index_t i = 0; i < wanted; i += 2) {
      interleave(rows[i], rows[i + 1], padded, tile.values[p + i / 2]);
    }
  }
}

/// sums [Rows, 64] += left times right over `pairs` pairs. Meanwhile `lines` lines of `ahead` are
/// asked for, evenly spread.
template <std::size_t Rows>
inline void accumulate_outer(float* sums, pair_source left, std::uint32_t const* right,
                             index_t pairs, line_cursor& ahead, index_t lines) {
  __m512 lanes[Rows][4];
  repeat<Rows>([&](auto r) MOE64_INLINE {
    repeat<4>([&](auto n) MOE64_INLINE {
      lanes[r][n] = _mm512_loadu_ps(sums + index_t{r} * outer_columns + index_t{n} * 16);
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
      _mm512_storeu_ps(sums + index_t{r} * outer_columns + index_t{n} * 16, lanes[r][n]);
    });
  });
}

/// sums [rows, columns] += left times right, both from pair 0 on. Meanwhile the lines of `later`
/// rows of `ahead` are on their way.
inline void multiply_outer(outer_sums& sums, index_t rows, index_t columns, pair_source left,
                           pair_tile const& right, index_t pairs, line_cursor ahead = {},
                           index_t later = 0) {
  constexpr index_t group = 6;
  index_t const calls = ceil_div(rows, group) * ceil_div(columns, index_t{64});
  index_t const lines = ceil_div(ahead.row_lines * later, calls);
  for (index_t r = 0; r < rows; r += group) {
    pair_source const here = left.from(r, 0);
    for (index_t c = 0; c < columns; c += 64) {
      float* const out = &sums[r][c];
      std::uint32_t const* const tile = &right.values[0][c];
      switch (rows - r) {
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
          accumulate_outer<group>(out, here, tile, pairs, ahead, lines);
      }
    }
  }
}

MOE64_END_AVX512_BF16

}  // namespace moe64::cpu::bf16
