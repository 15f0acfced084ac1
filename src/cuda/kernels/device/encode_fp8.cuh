#pragma once

#include "cuda/kernels/device/math.cuh"
#include "cuda/kernels/device/scale.cuh"
#include "cuda/kernels/device/vec8.cuh"

/// Elements divided by the factor of their block, as codes.
namespace moe64::cuda {

/// x / factor within the codes; zero where the factor is NaN. A quotient that is NaN stays so.
__device__ inline float bounded_quotient(float x, float factor, float largest_code) {
  if (factor != factor) return 0.0F;
  float const exact = x / factor;
  return exact < -largest_code ? -largest_code : (largest_code < exact ? largest_code : exact);
}

/// Whether all steps of quotient() stay normal, except for quotients that are zero as codes.
__device__ inline bool is_easy_factor(float factor) {
  return factor >= 0x1p-60F && factor <= 0x1p60F;
}

/// What the codes of one block are made with: the stored scale, and the factor that elements are
/// divided by (the scale as it is read again, times a global one).
struct block_factor {
  std::uint32_t scale;
  float factor;
  float reciprocal;      ///< of the factor; 0: divide
  float reciprocal_low;  ///< of short quotients: the low part of the reciprocal, above zero
};

/// Whether quotients of these are computed by short_quotient().
template <dtype Code, dtype X>
inline constexpr bool takes_short_quotients = bits(X) == 16 &&
                                              (Code == dtype::e4m3 || Code == dtype::e5m2);

/// x / factor rounded to nearest, for x of at most 11 significant bits and a factor that is such a
/// value divided by the largest code, or has 11 bits itself: none of these quotients is so close to
/// the midpoint of two floats that the relative error of this, 2^-46, would matter. Zeros keep
/// their sign.
__device__ inline float short_quotient(float x, block_factor const& by) {
  return __fmaf_rn(x, by.reciprocal, x * by.reciprocal_low);
}

/// With the reciprocal of an easy factor, and for short quotients its low part.
template <bool Short>
__device__ inline block_factor with_reciprocal(std::uint32_t scale, float factor) {
  if constexpr (!Short) return {scale, factor, reciprocal(factor), 0.0F};
  float guess;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(factor));
  // The guess is at most 1 unit off, this one 1 to 3 units too small.
  float const below = __uint_as_float(__float_as_uint(guess) - 2);
  return {scale, factor, below, __fmaf_rn(-factor, below, 1.0F) * below};
}

/// The factor of any block: the slow path, not inlined.
template <bool Short>
__device__ __noinline__ block_factor unusual_factor(dtype type, std::uint32_t largest,
                                                    float largest_code, global_factor global) {
  stored_scale const scale = scale_for(type, largest, largest_code, global);
  float const factor = global.applied_to(scale.value);
  // A global scale makes factors that are not short.
  bool const easy = is_easy_factor(factor) && !(Short && global.present);
  if (!easy) return {scale.code, factor, 0.0F, 0.0F};
  return with_reciprocal<Short>(scale.code, factor);
}

/// The largest code that quantize uses; integers stay symmetric.
template <dtype Code>
inline constexpr float largest_code_of = Code == dtype::e4m3   ? 448.0F
                                         : Code == dtype::e5m2 ? 57344.0F
                                         : Code == dtype::int8 ? 127.0F
                                         : Code == dtype::int4 ? 7.0F
                                                               : 6.0F;

template <dtype Code>
inline constexpr bool is_integer = Code == dtype::int8 || Code == dtype::int4;

/// The factor of a block of `X` whose largest magnitude has the bits `largest`.
template <dtype Code, dtype X>
__device__ inline block_factor factor_for(dtype type, std::uint32_t largest,
                                          global_factor const& global) {
  constexpr bool is_short = takes_short_quotients<Code, X>;
  constexpr float most = largest_code_of<Code>, by = 1.0F / most;
  constexpr std::uint32_t low = (127U - 40U) << 23, high = (127U + 60U) << 23;
  if (type == dtype::f32 && !global.present && largest >= low && largest <= high) {
    float const scale = quotient(__uint_as_float(largest), most, by);
    return with_reciprocal<is_short>(__float_as_uint(scale), scale);
  }
  return unusual_factor<is_short>(type, largest, most, global);
}

/// The codes of a vec8 with a division for each, for any factor: the slow path, not inlined.
template <dtype Code, dtype X>
__device__ __noinline__ raw8<Code> divided_codes_of(raw8<X> x, float factor) {
  float values[8];
  decode8<X>(x, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = bounded_quotient(values[i], factor, largest_code_of<Code>);
    if (is_integer<Code> && values[i] != values[i]) values[i] = 0.0F;
  }
  return encode8<Code>(values);
}

/// The codes of a vec8 by an easy factor.
template <dtype Code, dtype X>
__device__ inline raw8<Code> easy_codes_of(raw8<X> const& x, block_factor const& by) {
  float values[8];
  decode8<X>(x, values);
  if constexpr (takes_short_quotients<Code, X>) {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = short_quotient(values[i], by);
    return encode8<Code>(values);
  } else if constexpr (is_integer<Code>) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float const exact = quotient(values[i], by.factor, by.reciprocal);
      values[i] = fminf(fmaxf(exact, -largest_code_of<Code>), largest_code_of<Code>);
    }
    return encode8<Code>(values);
  } else {
    // quotient() loses the sign of zero, so it gets magnitudes, and the codes the sign afterwards.
    float magnitudes[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      magnitudes[i] = quotient(fabsf(values[i]), by.factor, by.reciprocal);
    }
    raw8<Code> codes = encode8<Code>(magnitudes);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      constexpr int size = bits(Code), in_word = 32 / size;
      std::uint32_t const sign = __float_as_uint(values[i]) >> 31;
      codes.word[i / in_word] |= sign << (i % in_word * size + size - 1);
    }
    return codes;
  }
}

/// vec16: sixteen adjacent elements.
template <dtype Type>
struct raw16 {
  raw8<Type> half[2];
};

template <dtype Type>
__device__ inline raw16<Type> load16(void const* data) {
  return {
      {load8<Type>(data), load8<Type>(static_cast<std::uint8_t const*>(data) + bytes_of_8(Type))}};
}

/// Codes of 8 or 4 bits, streaming, by one instruction.
template <dtype Code>
__device__ inline void store16(void* data, raw16<Code> const& x) {
  if constexpr (bits(Code) == 8) {
    __stcs(static_cast<uint4*>(data),
           make_uint4(x.half[0].word[0], x.half[0].word[1], x.half[1].word[0], x.half[1].word[1]));
  } else {
    __stcs(static_cast<uint2*>(data), make_uint2(x.half[0].word[0], x.half[1].word[0]));
  }
}

/// The largest magnitude of a vec16, as bits of f32: infinity and NaN are larger than all others.
template <dtype X>
__device__ inline std::uint32_t largest_of(raw16<X> const& x) {
  std::uint32_t largest = 0;
  if constexpr (X == dtype::f32) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      largest = max(largest, x.half[i / 8].word[i % 8] & 0x7fffffffU);
    }
    return largest;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = larger_halves<X>(largest, x.half[i / 4].word[i % 4]);
    return larger_half<X>(largest);
  }
}

/// The codes of a vec16 by the factor of its block.
template <dtype Code, dtype X>
__device__ inline raw16<Code> codes_of(raw16<X> const& x, block_factor const& by) {
  if (by.reciprocal != 0.0F) {
    return {{easy_codes_of<Code>(x.half[0], by), easy_codes_of<Code>(x.half[1], by)}};
  }
  return {
      {divided_codes_of<Code>(x.half[0], by.factor), divided_codes_of<Code>(x.half[1], by.factor)}};
}

}  // namespace moe64::cuda
