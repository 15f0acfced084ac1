#pragma once

#include "core/number.hpp"
#include "cpu/runtime/rows.hpp"
#include "cpu/simd/avx512.hpp"

#include <algorithm>
#include <array>

/// Weights as bf16: a code times its scale is rounded to the nearest bf16, ties to even, exactly as
/// `dequantize` does it, 64 or 32 at a time in registers.
namespace moe64::cpu::bf16 {

/// f32 values of the codes 0..127 of an 8-bit float format: the magnitudes.
template <float_format Format>
inline constexpr auto magnitudes = [] {
  std::array<float, 128> values{};
  for (std::uint32_t code = 0; code < values.size(); ++code) {
    values[code] = decode_float<Format>(code);
  }
  return values;
}();

[[nodiscard]] inline float const* magnitudes_of(dtype type) noexcept {
  return type == dtype::e4m3 ? magnitudes<e4m3_format>.data() : magnitudes<e5m2_format>.data();
}

/// The same as bf16, which is exact: the lower bytes, then the upper ones.
template <float_format Format>
alignas(64) inline constexpr auto magnitude_bytes = [] {
  std::array<std::uint8_t, 256> bytes{};
  for (std::size_t code = 0; code < 128; ++code) {
    std::uint16_t const word = encode_bf16(magnitudes<Format>[code]);
    bytes[code] = static_cast<std::uint8_t>(word & 0xff);
    bytes[code + 128] = static_cast<std::uint8_t>(word >> 8);
  }
  return bytes;
}();

/// The sixteen 4-bit codes.
template <dtype Type>
inline constexpr auto nibble_values = [] {
  std::array<float, 16> values{};
  for (std::uint32_t code = 0; code < values.size(); ++code) {
    values[code] = Type == dtype::int4 ? static_cast<float>(decode_int4(code))
                                       : decode_float<e2m1_format>(code);
  }
  return values;
}();

MOE64_BEGIN_AVX512_VBMI

/// The bf16 bits of sixteen f32, in the low halves of the lanes: encode_bf16.
[[gnu::always_inline]] inline __m512i round_to_bf16(__m512 values) {
  __m512i const bits = _mm512_castps_si512(values);
  __m512i const odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i const rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  __mmask16 const nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  __m512i const quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  return _mm512_mask_mov_epi32(rounded, nan, quiet);
}

/// 32 f32 as 32 bf16, in order.
[[gnu::always_inline]] inline __m512i pack_bf16(__m512 low, __m512 high) {
  __m512i const order =
      _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                       24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  return _mm512_permutex2var_epi16(round_to_bf16(low), order, round_to_bf16(high));
}

/// Sixty-four numbers, in order: the first 32 and the last 32.
struct pair {
  __m512i first, second;
};

/// What an 8-bit float times one scale can be: the bf16 results of its 128 magnitudes, low bytes
/// and high bytes apart. One lookup then replaces decoding, scaling and rounding.
struct float8_table {
  __m512i low[2], high[2];

  /// From the results [128] bf16, in order.
  [[gnu::always_inline]] static float8_table of(__m512i const (&words)[4]) {
    alignas(64) static constexpr auto even_bytes = [] {
      std::array<std::uint8_t, 64> places{};
      for (std::size_t i = 0; i < 64; ++i) places[i] = static_cast<std::uint8_t>(2 * i);
      return places;
    }();
    __m512i const even = _mm512_load_si512(even_bytes.data());
    __m512i const odd = _mm512_add_epi8(even, _mm512_set1_epi8(1));
    return {{_mm512_permutex2var_epi8(words[0], even, words[1]),
             _mm512_permutex2var_epi8(words[2], even, words[3])},
            {_mm512_permutex2var_epi8(words[0], odd, words[1]),
             _mm512_permutex2var_epi8(words[2], odd, words[3])}};
  }

  /// The table of scale 1.
  [[nodiscard, gnu::always_inline]] static float8_table exact(dtype type) {
    std::uint8_t const* const bytes = type == dtype::e4m3 ? magnitude_bytes<e4m3_format>.data()
                                                          : magnitude_bytes<e5m2_format>.data();
    return {{_mm512_load_si512(bytes), _mm512_load_si512(bytes + 64)},
            {_mm512_load_si512(bytes + 128), _mm512_load_si512(bytes + 192)}};
  }

  /// Low and high bytes of the results of 64 codes.
  struct bytes {
    __m512i low, high;
  };
  [[nodiscard, gnu::always_inline]] bytes look_up(__m512i codes) const {
    constexpr int xor_of_and = 0x78;  // a ^ (b & c): a scale may be negative
    __m512i const magnitude = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    return {_mm512_permutex2var_epi8(low[0], codes, low[1]),
            _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(-128), xor_of_and)};
  }

  [[nodiscard, gnu::always_inline]] pair dequantize(__m512i codes) const {
    // The unpacks below work within 128-bit lanes; this order of the source makes theirs the
    // natural one.
    codes = _mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), codes);
    bytes const found = look_up(codes);
    return {_mm512_unpacklo_epi8(found.low, found.high),
            _mm512_unpackhi_epi8(found.low, found.high)};
  }
};

/// The low `count` bits.
inline __mmask64 first_bytes(index_t count) {
  return count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
}
inline __mmask32 first_words(index_t count) {
  return count <= 0 ? 0 : count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}

MOE64_END_AVX512_VBMI

}  // namespace moe64::cpu::bf16
