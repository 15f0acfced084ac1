#pragma once

#include "core/float8.hpp"
#include "moe64/dtype.hpp"

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/// vec8: eight adjacent elements, as raw registers and as f32, which a thread of the fast kernels
/// loads or stores at a time. The bits are those of the host's codecs; NaN is NaN, whatever its
/// payload.
namespace moe64::cuda {

/// Eight elements of `Type` as they lie in memory.
template <dtype Type>
struct raw8 {
  static constexpr int words = bits(Type) / 4;
  std::uint32_t word[words];
};

/// Bytes of a vec8, and the alignment that load8 and store8 need.
[[nodiscard]] constexpr index_t bytes_of_8(dtype type) { return bits(type); }
[[nodiscard]] constexpr index_t alignment_of_8(dtype type) {
  return bytes_of_8(type) < 16 ? bytes_of_8(type) : 16;
}

/// Streaming (ld.cs): evicted first, since it is read once.
template <dtype Type>
__device__ inline raw8<Type> load8(void const* data) {
  raw8<Type> result;
  if constexpr (raw8<Type>::words == 1) {
    result.word[0] = __ldcs(static_cast<unsigned const*>(data));
  } else if constexpr (raw8<Type>::words == 2) {
    uint2 const w = __ldcs(static_cast<uint2 const*>(data));
    result = {{w.x, w.y}};
  } else {
    for (int i = 0; i < raw8<Type>::words; i += 4) {
      uint4 const w = __ldcs(static_cast<uint4 const*>(data) + i / 4);
      result.word[i] = w.x;
      result.word[i + 1] = w.y;
      result.word[i + 2] = w.z;
      result.word[i + 3] = w.w;
    }
  }
  return result;
}

/// Streaming (st.cs).
template <dtype Type>
__device__ inline void store8(void* data, raw8<Type> const& x) {
  if constexpr (raw8<Type>::words == 1) {
    __stcs(static_cast<unsigned*>(data), x.word[0]);
  } else if constexpr (raw8<Type>::words == 2) {
    __stcs(static_cast<uint2*>(data), make_uint2(x.word[0], x.word[1]));
  } else {
    for (int i = 0; i < raw8<Type>::words; i += 4) {
      __stcs(static_cast<uint4*>(data) + i / 4,
             make_uint4(x.word[i], x.word[i + 1], x.word[i + 2], x.word[i + 3]));
    }
  }
}

template <dtype Type>
inline constexpr float_format format_of = Type == dtype::e5m2  ? e5m2_format
                                          : Type == dtype::fp4 ? e2m1_format
                                                               : e4m3_format;

/// Two 8-bit floats, the first in the lower byte.
template <dtype Type>
__device__ inline float2 decode_float8_pair(std::uint32_t pair) {
#if __CUDA_ARCH__ >= 890
  auto const codes = static_cast<__nv_fp8x2_storage_t>(pair);  // narrow-ok: the lower 16 bits
  __half2_raw const halves =
      __nv_cvt_fp8x2_to_halfraw2(codes, Type == dtype::e4m3 ? __NV_E4M3 : __NV_E5M2);
  return __half22float2(__half2(halves));
#else
  return {decode_float<format_of<Type>>(pair & 0xffU),
          decode_float<format_of<Type>>((pair >> 8) & 0xffU)};
#endif
}

/// Two nibbles of fp4, the first lower: the same bits at the top of an f16 are 2^-14 of the value,
/// 0.5 included, which is subnormal in both.
__device__ inline float2 decode_fp4_pair(std::uint32_t pair) {
  std::uint32_t const magnitudes = ((pair & 0x07U) << 9) | ((pair & 0x70U) << 21);
  std::uint32_t const signs = ((pair & 0x08U) << 12) | ((pair & 0x80U) << 24);
  __half2_raw const halves = {static_cast<unsigned short>(magnitudes | signs),  // narrow-ok: half
                              static_cast<unsigned short>((magnitudes | signs) >> 16)};
  float2 const small = __half22float2(__half2(halves));
  return {small.x * 16384.0F, small.y * 16384.0F};
}

template <dtype Type>
__device__ inline void decode8(raw8<Type> const& x, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    float2 pair;
    if constexpr (Type == dtype::f32) {
      pair = {__uint_as_float(x.word[i]), __uint_as_float(x.word[i + 1])};
    } else if constexpr (Type == dtype::bf16) {
      pair = {__uint_as_float(x.word[i / 2] << 16), __uint_as_float(x.word[i / 2] & 0xffff0000U)};
    } else if constexpr (Type == dtype::f16) {
      __half2_raw const halves = {
          static_cast<unsigned short>(x.word[i / 2]),         // narrow-ok: the lower half
          static_cast<unsigned short>(x.word[i / 2] >> 16)};  // narrow-ok: the upper half
      pair = __half22float2(__half2(halves));
    } else if constexpr (Type == dtype::e4m3 || Type == dtype::e5m2) {
      pair = decode_float8_pair<Type>((x.word[i / 4] >> (8 * (i % 4))) & 0xffffU);
    } else if constexpr (Type == dtype::int8) {
      std::uint32_t const two = x.word[i / 4] >> (8 * (i % 4));
      pair = {static_cast<float>(static_cast<std::int8_t>(two)),        // narrow-ok: a byte
              static_cast<float>(static_cast<std::int8_t>(two >> 8))};  // narrow-ok: a byte
    } else if constexpr (Type == dtype::int4) {
      std::uint32_t const two = x.word[0] >> (4 * i);
      pair = {static_cast<float>(decode_int4(two)), static_cast<float>(decode_int4(two >> 4))};
    } else {
      static_assert(Type == dtype::fp4);
      pair = decode_fp4_pair((x.word[0] >> (4 * i)) & 0xffU);
    }
    out[i] = pair.x;
    out[i + 1] = pair.y;
  }
}

/// Two values as bf16 or f16, the first in the lower half.
template <dtype Type>
__device__ inline std::uint32_t encode_half_pair(float first, float second) {
  static_assert(Type == dtype::bf16 || Type == dtype::f16);
  std::uint32_t pair;
  if constexpr (Type == dtype::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

/// Each half of a word, bf16 or f16, no more than that of another, and no less; NaN where one is.
template <dtype Type>
__device__ inline std::uint32_t at_most_halves(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  if constexpr (Type == dtype::bf16) {
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  } else {
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  }
  return result;
}
template <dtype Type>
__device__ inline std::uint32_t at_least_halves(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  if constexpr (Type == dtype::bf16) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  }
  return result;
}

/// Each half of a word, bf16 or f16, between those of another, which are above zero, and their
/// negatives; NaN where it is.
template <dtype Type>
__device__ inline std::uint32_t within_halves(std::uint32_t a, std::uint32_t limits) {
#if __CUDA_ARCH__ >= 860
  // The smaller magnitude under the sign of both.
  std::uint32_t result;
  if constexpr (Type == dtype::bf16) {
    asm("min.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(limits));
  } else {
    asm("min.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(limits));
  }
  return result;
#else
  return at_least_halves<Type>(at_most_halves<Type>(a, limits), limits | 0x80008000U);
#endif
}

/// The larger magnitude of each half of two words, bf16 or f16, under any sign; NaN is larger than
/// all others.
template <dtype Type>
__device__ inline std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
#if __CUDA_ARCH__ >= 860
  std::uint32_t result;
  if constexpr (Type == dtype::bf16) {
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  }
  return result;
#else
  return __vmaxu2(a & 0x7fff7fffU, b & 0x7fff7fffU);
#endif
}

/// The larger one of both halves of a word without their signs, as bits of f32.
template <dtype Type>
__device__ inline std::uint32_t larger_half(std::uint32_t word) {
  std::uint32_t const half = max(word & 0x7fffU, word >> 16 & 0x7fffU);
  if constexpr (Type == dtype::bf16) return half << 16;
  return __float_as_uint(
      __half2float(__ushort_as_half(static_cast<unsigned short>(half))));  // narrow-ok: 15 bits
}

/// Two values as 8-bit floats, the first in the lower byte; saturating.
template <dtype Type>
__device__ inline std::uint32_t encode_float8_pair(float first, float second) {
#if __CUDA_ARCH__ >= 890
  return __nv_cvt_float2_to_fp8x2({first, second}, __NV_SATFINITE,
                                  Type == dtype::e4m3 ? __NV_E4M3 : __NV_E5M2);
#else
  return encode_float<format_of<Type>>(first) | encode_float<format_of<Type>>(second) << 8;
#endif
}

/// Two's complement of an integer that fits in the bits of the mask.
__device__ inline std::uint32_t low_bits(int integer, std::uint32_t mask) {
  return static_cast<std::uint32_t>(integer) & mask;  // narrow-ok: its bits
}

/// Rounded to `Type`. Integers must lie in its range.
template <dtype Type>
__device__ inline raw8<Type> encode8(float const (&in)[8]) {
  raw8<Type> result;
  if constexpr (Type == dtype::f32) {
#pragma unroll
    for (int i = 0; i < 8; ++i) result.word[i] = __float_as_uint(in[i]);
  } else if constexpr (Type == dtype::bf16 || Type == dtype::f16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      result.word[i] = encode_half_pair<Type>(in[2 * i], in[2 * i + 1]);
    }
  } else if constexpr (Type == dtype::e4m3 || Type == dtype::e5m2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      result.word[i] = encode_float8_pair<Type>(in[4 * i], in[4 * i + 1]) |
                       encode_float8_pair<Type>(in[4 * i + 2], in[4 * i + 3]) << 16;
    }
  } else if constexpr (Type == dtype::int8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t word = 0;
      for (int j = 3; j >= 0; --j) {
        word = word << 8 | low_bits(__float2int_rn(in[4 * i + j]), 0xffU);
      }
      result.word[i] = word;
    }
  } else {
    std::uint32_t word = 0;
#pragma unroll
    for (int i = 7; i >= 0; --i) {
      std::uint32_t const nibble = Type == dtype::int4 ? low_bits(__float2int_rn(in[i]), 0xfU)
                                                       : encode_float<e2m1_format>(in[i]);
      word = word << 4 | nibble;
    }
    result.word[0] = word;
  }
  return result;
}

}  // namespace moe64::cuda
