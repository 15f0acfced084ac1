#pragma once

#include "core/view.hpp"
#include "cpu/gemm/bf16/codes.hpp"
#include "moe64/index.hpp"

#include <algorithm>

/// Dot products of bf16 rows with the processor's bf16 arithmetic, in one fixed order: the pair of
/// elements 2 i and 2 i + 1 goes to lane i % 16, each lane adds its pairs in ascending order, and
/// the lanes are folded in halves. The order depends on the length alone.
namespace moe64::cpu::bf16 {

/// Cache lines of rows of weights that will be read later, one after the other.
struct line_cursor {
  char const* row = nullptr;
  index_t row_stride = 0;  ///< bytes
  index_t row_lines = 0;   ///< 0: there is nothing to ask for
  index_t line = 0;

  /// Ask for the next line; a hint, which changes no result.
  void prefetch() {
    if (row_lines == 0) return;
    _mm_prefetch(row + line * 64, _MM_HINT_T0);
    if (++line < row_lines) return;
    line = 0;
    row += row_stride;
  }
};

MOE64_BEGIN_AVX512_BF16

inline __m512bh as_bf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

/// The lanes of the dot products of up to four rows of x by four rows of weights.
struct dot_lanes {
  __m512 acc[4][4];
};

/// [i] = the sum of the sixteen lanes of rows[i], folded in halves.
[[gnu::always_inline]] inline __m512 fold(__m512 const (&rows)[16]) {
  // Each round adds the upper half of what is left of every row to the lower half, and puts the
  // results of two rows side by side.
  __m512 eighths[8];
  repeat<8>([&](auto i) MOE64_INLINE {
    __m512 const a = rows[i];
    __m512 const b = rows[i + 8];
    eighths[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  });
  __m512 quarters[4];  // lanes of 128 bits: rows i, i + 8, i + 4, i + 12 after the shuffle below
  repeat<4>([&](auto i) MOE64_INLINE {
    __m512 const a = eighths[i];
    __m512 const b = eighths[i + 4];
    quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  });
  __m512 halves[2];
  repeat<2>([&](auto i) MOE64_INLINE {
    __m512 const a = quarters[i];
    __m512 const b = quarters[i + 2];
    halves[i] = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  });
  __m512 const mixed = _mm512_add_ps(_mm512_shuffle_ps(halves[0], halves[1], 0x88),
                                     _mm512_shuffle_ps(halves[0], halves[1], 0xdd));
  // Lane 4 q + s holds row: q chooses {0, 8, 4, 12}, s chooses {0, 2, 1, 3}.
  __m512i const order = _mm512_set_epi32(15, 13, 14, 12, 7, 5, 6, 4, 11, 9, 10, 8, 3, 1, 2, 0);
  return _mm512_permutexvar_ps(order, mixed);
}

/// Rows of x or of weights, bf16, that lie `stride` apart.
struct row_panel {
  std::uint16_t const* data;
  index_t stride;
};

/// Rows of x [1, rows, depth] bf16, adjacent columns.
inline row_panel rows_of(tensor_view const& x, index_t row) {
  return {static_cast<std::uint16_t const*>(x.data) + offset_of(x, 0, row), x.stride[1]};
}

/// body(the number of rows as a constant), four at most.
template <class Body>
inline void with_rows(index_t rows, Body const& body) {
  switch (rows) {
    case 1:
      return body(std::integral_constant<std::size_t, 1>{});
    case 2:
      return body(std::integral_constant<std::size_t, 2>{});
    case 3:
      return body(std::integral_constant<std::size_t, 3>{});
    default:
      return body(std::integral_constant<std::size_t, 4>{});
  }
}

/// lanes += x rows times weight rows over `depth` columns; weights are zero from there up to a
/// multiple of 32.
template <std::size_t Rows>
[[gnu::always_inline]] inline void accumulate(dot_lanes& lanes, row_panel x, row_panel weights,
                                              index_t depth) {
  auto const step = [&](index_t k, auto const& load) MOE64_INLINE {
    __m512i numbers[Rows];
    repeat<Rows>([&](auto r)
                     MOE64_INLINE { numbers[r] = load(x.data + index_t{r} * x.stride + k); });
    repeat<4>([&](auto n) MOE64_INLINE {
      __m512i const weight = _mm512_loadu_si512(weights.data + index_t{n} * weights.stride + k);
      repeat<Rows>([&](auto r) MOE64_INLINE {
        lanes.acc[r][n] = _mm512_dpbf16_ps(lanes.acc[r][n], as_bf16(numbers[r]), as_bf16(weight));
      });
    });
  };
  index_t const whole = depth / 32 * 32;
  for (index_t k = 0; k < whole; k += 32) {
    step(k, [&](std::uint16_t const* from) MOE64_INLINE { return _mm512_loadu_si512(from); });
  }
  if (whole < depth) {
    step(whole, [&](std::uint16_t const* from) MOE64_INLINE {
      return _mm512_maskz_loadu_epi16(first_words(depth - whole), from);
    });
  }
}

/// out[r][n] = the folded lanes of four outputs.
template <std::size_t Rows>
[[gnu::always_inline]] inline void store_dots(dot_lanes const& lanes, float* out,
                                              index_t out_stride) {
  __m512 all[16];
  repeat<16>([&](auto i) MOE64_INLINE {
    all[i] = i / 4 < Rows ? lanes.acc[i / 4][i % 4] : _mm512_setzero_ps();
  });
  __m512 const dots = fold(all);
  repeat<Rows>([&](auto r) MOE64_INLINE {
    _mm_storeu_ps(out + index_t{r} * out_stride, _mm512_extractf32x4_ps(dots, int{r}));
  });
}

/// out[r][n] = x row r times weight row n over the whole depth. Meanwhile `lines` lines of `ahead`
/// are asked for, evenly spread: the processor drops prefetches that come all at once.
template <std::size_t Rows>
inline void multiply(row_panel x, row_panel weights, index_t depth, float* out, index_t out_stride,
                     line_cursor& ahead, index_t lines) {
  dot_lanes lanes = {};
  constexpr index_t shortest = 128;  // shorter pieces cost more than they spread
  index_t const pieces = std::clamp<index_t>(lines, 1, std::max<index_t>(1, depth / shortest));
  index_t const piece = ceil_div(depth, pieces * 32) * 32;
  for (index_t k = 0; k < depth; k += piece) {
    for (index_t line = 0; line < lines; line += pieces) ahead.prefetch();
    accumulate<Rows>(lanes, {x.data + k, x.stride}, {weights.data + k, weights.stride},
                     std::min(piece, depth - k));
  }
  store_dots<Rows>(lanes, out, out_stride);
}

/// lanes += x times weights, for products whose depth comes in pieces.
template <std::size_t Rows>
inline void carry(dot_lanes& lanes, row_panel x, row_panel weights, index_t depth) {
  dot_lanes acc = lanes;
  accumulate<Rows>(acc, x, weights, depth);
  lanes = acc;
}

MOE64_END_AVX512_BF16

}  // namespace moe64::cpu::bf16
