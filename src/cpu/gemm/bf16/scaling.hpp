#pragma once

#include "cpu/gemm/bf16/codes.hpp"

/// Codes times their scale as bf16, with the processor's own rounding.
namespace moe64::cpu::bf16 {

MOE64_BEGIN_AVX512_BF16

/// 32 f32 as 32 bf16, as pack_bf16 but that subnormal results become zero: the dot products of the
/// processor do the same with subnormal operands, so no result can tell.
[[gnu::always_inline]] inline __m512i native_pack(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// The table of one scale. `magnitudes` [128] f32.
[[gnu::always_inline]] inline float8_table native_table(float const* magnitudes, float scale) {
  __m512 const factor = _mm512_set1_ps(scale);
  auto const words = [&](index_t i) MOE64_INLINE {
    return native_pack(_mm512_mul_ps(_mm512_loadu_ps(magnitudes + 32 * i), factor),
                       _mm512_mul_ps(_mm512_loadu_ps(magnitudes + 32 * i + 16), factor));
  };
  return float8_table::of({words(0), words(1), words(2), words(3)});
}

/// 32 bf16 times a factor, rounded to bf16.
[[gnu::always_inline]] inline __m512i scale_bf16(__m512i numbers, __m512 factor) {
  __m512i const low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(numbers));
  __m512i const high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(numbers, 1));
  return native_pack(_mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(low, 16)), factor),
                     _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(high, 16)), factor));
}

/// 32 codes times a factor, rounded to bf16; zeros past `count`. `codes` is the first byte: 4-bit
/// codes start at a whole one.
[[gnu::always_inline]] inline __m512i scale_int8(std::uint8_t const* codes, index_t count,
                                                 __m512 factor) {
  __m256i const bytes = _mm256_maskz_loadu_epi8(first_words(count), codes);
  __m512i const low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes));
  __m512i const high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1));
  __m512i const scaled = native_pack(_mm512_mul_ps(_mm512_cvtepi32_ps(low), factor),
                                     _mm512_mul_ps(_mm512_cvtepi32_ps(high), factor));
  return _mm512_maskz_mov_epi16(first_words(count), scaled);
}

/// `values` [16] f32: nibble_values.
[[gnu::always_inline]] inline __m512i scale_nibbles(std::uint8_t const* codes, index_t count,
                                                    float const* values, __m512 factor) {
  // The sixteen results, twice: the permute looks at five bits of an index.
  __m512i const table = _mm512_broadcast_i64x4(reinterpret_cast<__m256i>(
      _mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_loadu_ps(values), factor))));
  auto const results = [&](__m128i bytes) MOE64_INLINE {
    // A byte becomes two 16-bit indices, lower nibble first; the permute ignores their upper bits.
    __m512i const wide = _mm512_cvtepu8_epi32(bytes);
    return _mm512_permutexvar_epi16(_mm512_or_si512(wide, _mm512_slli_epi32(wide, 12)), table);
  };
  if (count >= 32) return results(_mm_loadu_si128(reinterpret_cast<__m128i const*>(codes)));
  auto const bytes_there = static_cast<__mmask16>(first_words((count + 1) / 2));
  return _mm512_maskz_mov_epi16(first_words(count),
                                results(_mm_maskz_loadu_epi8(bytes_there, codes)));
}

/// 64 codes of an 8-bit float, zeros past `count`; `exact` is the table of scale 1.
[[gnu::always_inline]] inline pair scale_float8(std::uint8_t const* codes, index_t count,
                                                float8_table const& exact, __m512 factor) {
  pair const numbers = exact.dequantize(_mm512_maskz_loadu_epi8(first_bytes(count), codes));
  __m512i const first = scale_bf16(numbers.first, factor);
  __m512i const second = scale_bf16(numbers.second, factor);
  if (count >= 64) return {first, second};
  return {_mm512_maskz_mov_epi16(first_words(count), first),
          _mm512_maskz_mov_epi16(first_words(count - 32), second)};
}

/// out [count rounded up to 16] f32 = e8m0 codes: decode_e8m0.
inline void load_powers(std::uint8_t const* codes, index_t count, float* out) {
  for (index_t i = 0; i < count; i += 16) {
    auto const there = static_cast<__mmask16>(first_words(count - i));
    __m512i const code = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, codes + i));
    __m512i bits = _mm512_slli_epi32(code, 23);
    bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(code, code),
                                 _mm512_set1_epi32(0x00400000));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(0xff)),
                                 _mm512_set1_epi32(0x7fc00000));
    _mm512_storeu_ps(out + i, _mm512_castsi512_ps(bits));
  }
}

MOE64_END_AVX512_BF16

}  // namespace moe64::cpu::bf16
