#pragma once

#include "cpu/gemm/bf16/weights.hpp"

#include <bit>
#include <cstring>
#include <limits>

/// Two rows at a time as pairs of bf16: the right-hand side of outer products.
namespace moe64::cpu::bf16 {

/// Columns of one tile, and pairs of summands that are dequantised at a time.
inline constexpr index_t outer_columns = 128;
inline constexpr index_t outer_pairs = 128;

/// The right-hand side: [pairs, columns] of two neighbouring summands each.
struct pair_tile {
  alignas(64) std::uint32_t values[outer_pairs][outer_columns];
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

/// 64 codes of two rows as 64 pairs of bf16: four vectors, in order.
struct pair_vectors {
  __m512i words[4];
};
[[gnu::always_inline]] inline pair_vectors dequantize_pairs(float8_table const& table, __m512i even,
                                                            __m512i odd) {
  // The unpacks below work within 128-bit lanes; this order of the source makes theirs the natural
  // one.
  __m512i const transposed =
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  auto const words_of = [&](__m512i codes) MOE64_INLINE {
    codes = _mm512_permutexvar_epi32(transposed, codes);
    float8_table::bytes const bytes = table.look_up(codes);
    return pair{_mm512_unpacklo_epi8(bytes.low, bytes.high),
                _mm512_unpackhi_epi8(bytes.low, bytes.high)};
  };
  pair const a = words_of(even);
  pair const b = words_of(odd);
  return {{_mm512_unpacklo_epi16(a.first, b.first), _mm512_unpackhi_epi16(a.first, b.first),
           _mm512_unpacklo_epi16(a.second, b.second), _mm512_unpackhi_epi16(a.second, b.second)}};
}

/// Sixteen pairs of bf16, each half times its own factor, rounded to bf16.
[[gnu::always_inline]] inline __m512i scale_pairs(__m512i pairs, __m512 even, __m512 odd) {
  __m512i const interleaved =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  __m512i const upper = _mm512_and_si512(pairs, _mm512_set1_epi32(std::bit_cast<int>(0xffff0000U)));
  __m512 const first = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)), even);
  __m512 const second = _mm512_mul_ps(_mm512_castsi512_ps(upper), odd);
  return _mm512_permutexvar_epi16(interleaved, native_pack(first, second));
}

/// read_pairs for 8-bit floats with one scale per row in these columns: codes are paired before
/// they are dequantised, which saves most of the shuffles.
class float8_pairs {
 public:
  explicit float8_pairs(weight_reader const& reader) : reader_(reader) {}

  /// Rows [row, row + rows) of weights, at most 64 of them, to tile rows from `out` on.
  void read(index_t row, index_t rows, index_t column, index_t columns,
            std::uint32_t (*out)[outer_columns]) {
    std::uint8_t const* codes[most_rows];
    float scales[most_rows];
    reader_.locate(row, rows, column, codes, scales);
    for (index_t i = 0; i < rows; i += 2) {
      bool const alone = i + 1 == rows;
      read_pair(codes[i], alone ? nullptr : codes[i + 1], scales[i], alone ? 1.0F : scales[i + 1],
                columns, out[i / 2]);
    }
  }
  static constexpr index_t most_rows = weight_reader::most_located;

 private:
  /// Columns past the last hold garbage up to a multiple of 64. Without `odd` its half is zero.
  void read_pair(std::uint8_t const* even, std::uint8_t const* odd, float even_scale,
                 float odd_scale, index_t columns, std::uint32_t* out) {
    bool const by_table = even_scale == odd_scale && reader_.rows_share_scales();
    if (by_table && scaled_for_ != even_scale) {
      scaled_ = reader_.table_of(even_scale);
      scaled_for_ = even_scale;
    }
    float8_table const table = by_table ? scaled_ : reader_.exact_table();
    __m512 const even_factor = _mm512_set1_ps(even_scale);
    __m512 const odd_factor = _mm512_set1_ps(odd_scale);
    for (index_t c = 0; c < columns; c += 64) {
      __mmask64 const there = first_bytes(columns - c);
      __m512i const even_codes = _mm512_maskz_loadu_epi8(there, even + c);
      __m512i const odd_codes =
          odd == nullptr ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi8(there, odd + c);
      pair_vectors const pairs = dequantize_pairs(table, even_codes, odd_codes);
      repeat<4>([&](auto n) MOE64_INLINE {
        _mm512_store_si512(
            out + c + index_t{n} * 16,
            by_table ? pairs.words[n] : scale_pairs(pairs.words[n], even_factor, odd_factor));
      });
    }
  }

  weight_reader const& reader_;
  float8_table scaled_;
  float scaled_for_ = std::numeric_limits<float>::quiet_NaN();
};

/// Weight rows from 2 * first on, in the columns of a tile; zeros past the last row.
inline void read_pairs(weight_reader& reader, index_t depth, index_t first, index_t pairs,
                       index_t column, index_t columns, pair_tile& tile) {
  if (reader.has_located_rows(column, columns)) {
    float8_pairs direct(reader);
    constexpr index_t at_once = float8_pairs::most_rows / 2;
    for (index_t p = 0; p < pairs; p += at_once) {
      index_t const row = 2 * (first + p);
      index_t const rows = std::min({2 * at_once, 2 * (pairs - p), depth - row});
      direct.read(row, rows, column, columns, tile.values + p);
    }
    return;
  }
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

MOE64_END_AVX512_BF16

}  // namespace moe64::cpu::bf16
