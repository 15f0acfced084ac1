#pragma once

#include "cuda/kernels/functions.cuh"
#include "cuda/kernels/scale.cuh"
#include "cuda/kernels/vector8.cuh"

/// Numbers divided by the factor of their block, as codes.
namespace moe64::cuda {

/// number / factor within the codes; zero where the factor is NaN. A quotient that is NaN stays so.
__device__ inline float bounded_quotient(float number, float factor, float largest_code) {
  if (factor != factor) return 0.0F;
  float const exact = number / factor;
  return exact < -largest_code ? -largest_code : (largest_code < exact ? largest_code : exact);
}

/// A factor and what makes dividing by it cheap.
struct divisor {
  float factor, reciprocal;

  __device__ static divisor of(float factor) { return {factor, 1.0F / factor}; }
  /// Whether no step of quotient() can leave the normal numbers, except for quotients that are zero
  /// as codes.
  __device__ bool is_easy() const { return factor >= 0x1p-60F && factor <= 0x1p60F; }
};

/// The largest code that quantize uses; integers stay symmetric.
template <dtype Code>
inline constexpr float largest_code_of = Code == dtype::e4m3   ? 448.0F
                                         : Code == dtype::e5m2 ? 57344.0F
                                         : Code == dtype::int8 ? 127.0F
                                         : Code == dtype::int4 ? 7.0F
                                                               : 6.0F;

template <dtype Code>
inline constexpr bool is_integer = Code == dtype::int8 || Code == dtype::int4;

/// The largest magnitude of eight numbers, as bits of f32: infinity and NaN are larger than all
/// others.
template <dtype X>
__device__ inline std::uint32_t largest_of(raw8<X> const& x) {
  std::uint32_t largest = 0;
  if constexpr (X == dtype::f32) {
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = max(largest, x.word[i] & 0x7fffffffU);
    return largest;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = __vmaxu2(largest, x.word[i] & 0x7fff7fffU);
    std::uint32_t const half = max(largest & 0xffffU, largest >> 16);
    if constexpr (X == dtype::bf16) return half << 16;
    return __float_as_uint(decode_float<f16_format>(half));
  }
}

/// The signs of eight bf16 or f16 as those of eight codes of 8 bits; `i` is 0 or 1: which four.
__device__ inline std::uint32_t signs_of_four(std::uint32_t lower, std::uint32_t upper) {
  return __byte_perm(lower, upper, 0x7531) & 0x80808080U;
}

/// The codes of eight numbers divided by a factor.
template <dtype Code, dtype X>
__device__ inline raw8<Code> codes_of(raw8<X> const& x, divisor const& by) {
  float numbers[8];
  decode8<X>(x, numbers);
  if (!by.is_easy()) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      numbers[i] = bounded_quotient(numbers[i], by.factor, largest_code_of<Code>);
      if (is_integer<Code> && numbers[i] != numbers[i]) numbers[i] = 0.0F;
    }
    return encode8<Code>(numbers);
  }
  if constexpr (is_integer<Code>) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float const exact = quotient(numbers[i], by.factor, by.reciprocal);
      numbers[i] = fminf(fmaxf(exact, -largest_code_of<Code>), largest_code_of<Code>);
    }
    return encode8<Code>(numbers);
  } else {
    // quotient() loses the sign of zero, so it gets magnitudes, and the codes the sign afterwards.
    float magnitudes[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      magnitudes[i] = quotient(fabsf(numbers[i]), by.factor, by.reciprocal);
    }
    raw8<Code> codes = encode8<Code>(magnitudes);
    if constexpr (bits(Code) == 8 && bits(X) == 16) {
      codes.word[0] |= signs_of_four(x.word[0], x.word[1]);
      codes.word[1] |= signs_of_four(x.word[2], x.word[3]);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        constexpr int size = bits(Code), in_word = 32 / size;
        std::uint32_t const sign = __float_as_uint(numbers[i]) >> 31;
        codes.word[i / in_word] |= sign << (i % in_word * size + size - 1);
      }
    }
    return codes;
  }
}

}  // namespace moe64::cuda
