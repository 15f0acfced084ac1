#pragma once

#include "core/float8.hpp"
#include "cuda/kernels/gemm/sm80/mma.cuh"
#include "moe64/dtype.hpp"

/// Dequantising a vec16 of codes: first to f16, which represents every code of every format
/// exactly, then times the scale in f32, rounded once.
namespace moe64::cuda {

/// 16 codes: 16 bytes, or 8 of a packed type in the first two words.
struct code_words {
  std::uint32_t word[4];
};
/// 8 f16 values.
struct half_run {
  std::uint32_t pair[4];
};

__device__ inline std::uint32_t multiply_halves(std::uint32_t pair, std::uint32_t factors) {
  __half2 const product =
      __hmul2(reinterpret_cast<__half2 const&>(pair), reinterpret_cast<__half2 const&>(factors));
  return reinterpret_cast<std::uint32_t const&>(product);
}
__device__ inline std::uint32_t subtract_halves(std::uint32_t pair, std::uint32_t terms) {
  __half2 const difference =
      __hsub2(reinterpret_cast<__half2 const&>(pair), reinterpret_cast<__half2 const&>(terms));
  return reinterpret_cast<std::uint32_t const&>(difference);
}

/// Bytes 2 `i` and 2 `i` + 1 of a word in the upper (or lower) bytes of two f16.
__device__ inline std::uint32_t spread_high(std::uint32_t word, int i) {
  return __byte_perm(word, 0, i == 0 ? 0x1404 : 0x3424);
}
__device__ inline std::uint32_t spread_low(std::uint32_t word, std::uint32_t above, int i) {
  return __byte_perm(word, above, i == 0 ? 0x4140 : 0x4342);
}

__device__ inline std::uint32_t e4m3_halves(std::uint32_t word, int i) {
#if __CUDA_ARCH__ >= 890
  auto const codes = static_cast<std::uint16_t>(i == 0 ? word : word >> 16);
  std::uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
  return pair;
#else
  // Exponent and mantissa one place lower are those of an f16 that is 2^8 too small.
  std::uint32_t const high = spread_high(word, i);
  std::uint32_t const magnitude = high & 0x7f007f00U;
  std::uint32_t const small = (high & 0x80008000U) | (magnitude >> 1);
  std::uint32_t const nan = __vcmpeq2(magnitude, 0x7f007f00U) & 0x7e007e00U;
  return multiply_halves(small, 0x5c005c00U) | nan;
#endif
}

/// f16 has the exponent of e5m2.
__device__ inline std::uint32_t e5m2_halves(std::uint32_t word, int i) {
  return spread_high(word, i);
}

/// 1024 + (code + 128) is an f16 whose lower byte is code + 128.
__device__ inline std::uint32_t int8_halves(std::uint32_t word, int i) {
  return subtract_halves(spread_low(word ^ 0x80808080U, 0x64U, i), 0x64806480U);
}

/// Nibbles 2 `i` and 2 `i` + 1 of a word in the lower bits of the two halves.
__device__ inline std::uint32_t spread_nibbles(std::uint32_t word, int i) {
  std::uint32_t const byte = word >> (8 * i);
  return (byte & 0xfU) | ((byte & 0xf0U) << 12);
}
__device__ inline std::uint32_t int4_halves(std::uint32_t word, int i) {
  return subtract_halves((spread_nibbles(word, i) ^ 0x00080008U) | 0x64006400U, 0x64086408U);
}
/// Exponent and mantissa of e2m1 are those of an f16 that is 2^14 too small.
__device__ inline std::uint32_t fp4_halves(std::uint32_t word, int i) {
  std::uint32_t const nibbles = spread_nibbles(word, i);
  std::uint32_t const small = ((nibbles & 0x00080008U) << 12) | ((nibbles & 0x00070007U) << 9);
  return multiply_halves(small, 0x74007400U);
}

[[nodiscard]] __device__ inline bool is_packed(dtype type) {
  return type == dtype::int4 || type == dtype::fp4;
}

/// The first or the second half of a vec16. The switch is uniform: all threads take the same case.
__device__ inline half_run halves_of(dtype type, code_words const& codes, bool second) {
  half_run run;
  std::uint32_t const bytes[2] = {second ? codes.word[2] : codes.word[0],
                                  second ? codes.word[3] : codes.word[1]};
  std::uint32_t const nibbles = second ? codes.word[1] : codes.word[0];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    switch (type) {
      case dtype::e4m3:
        run.pair[i] = e4m3_halves(bytes[i / 2], i % 2);
        break;
      case dtype::e5m2:
        run.pair[i] = e5m2_halves(bytes[i / 2], i % 2);
        break;
      case dtype::int8:
        run.pair[i] = int8_halves(bytes[i / 2], i % 2);
        break;
      case dtype::int4:
        run.pair[i] = int4_halves(nibbles, i);
        break;
      default:
        run.pair[i] = fp4_halves(nibbles, i);
    }
  }
  return run;
}

/// Scale i of an array as it is stored, and its value.
__device__ inline std::uint32_t load_code(dtype type, void const* scales, index_t i) {
  switch (type) {
    case dtype::f32:
      return static_cast<std::uint32_t const*>(scales)[i];
    case dtype::bf16:
    case dtype::f16:
      return static_cast<std::uint16_t const*>(scales)[i];
    default:
      return static_cast<std::uint8_t const*>(scales)[i];
  }
}
__device__ inline float scale_of_code(dtype type, std::uint32_t code) {
  switch (type) {
    case dtype::f32:
      return __uint_as_float(code);
    case dtype::bf16:
      return bf16_pair::low(code);
    case dtype::f16:
      return f16_pair::low(code);
    case dtype::e8m0:
      return decode_e8m0(static_cast<std::uint8_t>(code));
    default:
      return f16_pair::low(e4m3_halves(code, 0));
  }
}

}  // namespace moe64::cuda
