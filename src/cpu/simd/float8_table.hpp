// 8-bit floats of one scale to bf16 numbers by table: AVX-512 looks 32 of them up in three
// instructions. Included once per target, after simd.hpp; empty for the other targets.

#if defined(MOE64_CPU_FLOAT8_TABLE_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_FLOAT8_TABLE_SIMD_HPP
#undef MOE64_CPU_FLOAT8_TABLE_SIMD_HPP
#else
#define MOE64_CPU_FLOAT8_TABLE_SIMD_HPP
#endif

#include "cpu/simd/lanes.hpp"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// code * scale rounded to bf16, for the 128 codes without a sign.
struct bf16_table {
  __m512i words[4];

  template <class Number>
  static bf16_table of(float scale) {
    bf16_table table;
    f32_vector const scales = hn::Set(f32_tag{}, scale);
    for (int i = 0; i < 4; ++i) {
      alignas(64) std::uint16_t numbers[32];
      for (int half = 0; half < 32; half += 16) {
        std::uint8_t codes[16];
        for (int j = 0; j < 16; ++j) codes[j] = static_cast<std::uint8_t>(32 * i + half + j);
        lanes_of<bf16_number>::store(hn::Mul(lanes_of<Number>::load(codes, 0), scales), numbers,
                                     half);
      }
      table.words[i] = _mm512_load_si512(numbers);
    }
    return table;
  }
};

/// 32 numbers as f32.
struct two_vectors {
  f32_vector low, high;
};

HWY_INLINE two_vectors look_up(bf16_table const& table, std::uint8_t const* codes) {
  // Interleaving zeros below the words of each 128 bits brings the lanes into ascending order.
  __m256i const order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m512i const index = _mm512_cvtepu8_epi16(_mm256_permutevar8x32_epi32(
      _mm256_loadu_si256(reinterpret_cast<__m256i const*>(codes)), order));
  __m512i const small = _mm512_permutex2var_epi16(table.words[0], index, table.words[1]);
  __m512i const large = _mm512_permutex2var_epi16(table.words[2], index, table.words[3]);
  __mmask32 const is_large = _mm512_test_epi16_mask(index, _mm512_set1_epi16(0x40));
  __m512i const magnitude = _mm512_mask_blend_epi16(is_large, small, large);
  __m512i const sign = _mm512_set1_epi16(-0x8000);
  constexpr int first_xor_second_and_third = 0x78;
  __m512i const words = _mm512_ternarylogic_epi32(magnitude, sign, _mm512_slli_epi16(index, 8),
                                                  first_xor_second_and_third);
  __m512i const zero = _mm512_setzero_si512();
  return {of_bits(i32_vector{_mm512_unpacklo_epi16(zero, words)}),
          of_bits(i32_vector{_mm512_unpackhi_epi16(zero, words)})};
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
#endif
