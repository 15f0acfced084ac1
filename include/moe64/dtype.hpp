#pragma once

#include "moe64/export.hpp"
#include "moe64/index.hpp"

#include <cstdint>
#include <optional>
#include <string_view>

namespace moe64 {

/// Element types. The numbers are part of the C ABI.
enum class dtype : std::uint8_t {
  f32 = 0,
  bf16 = 1,
  f16 = 2,
  e4m3 = 3,  ///< OCP FP8 e4m3fn: no infinity, NaN 0x7f and 0xff, largest 448
  e5m2 = 4,  ///< OCP FP8 e5m2: infinity 0x7c, largest 57344
  e8m0 = 5,  ///< a power of two, 2^(code - 127); 0xff is NaN; only for scales
  int8 = 6,  ///< two's complement, -128..127
  int4 = 7,  ///< two's complement -8..7, two per byte, the lower nibble first
  fp4 = 8,   ///< e2m1: 0 .5 1 1.5 2 3 4 6 with a sign, two per byte, the lower nibble first
  int32 = 9,
  int64 = 10,
  uint8 = 11,
};

inline constexpr int dtype_count = 12;

/// Bits of one element: 4 for the packed types.
[[nodiscard]] constexpr index_t bits(dtype type) noexcept {
  switch (type) {
    case dtype::int4:
    case dtype::fp4:
      return 4;
    case dtype::e4m3:
    case dtype::e5m2:
    case dtype::e8m0:
    case dtype::int8:
    case dtype::uint8:
      return 8;
    case dtype::bf16:
    case dtype::f16:
      return 16;
    case dtype::f32:
    case dtype::int32:
      return 32;
    case dtype::int64:
      return 64;
  }
  return 0;
}

/// Types that are numbers by themselves and are computed with: f32, bf16, f16.
[[nodiscard]] constexpr bool is_float(dtype type) noexcept {
  return type == dtype::f32 || type == dtype::bf16 || type == dtype::f16;
}

/// Types whose codes mean nothing without a scale: e4m3, e5m2, int8, int4, fp4.
[[nodiscard]] constexpr bool is_quantized(dtype type) noexcept {
  return type == dtype::e4m3 || type == dtype::e5m2 || type == dtype::int8 || type == dtype::int4 ||
         type == dtype::fp4;
}

/// Types a scale may be stored in: f32, bf16, f16, e8m0, e4m3.
[[nodiscard]] constexpr bool is_scale(dtype type) noexcept {
  return is_float(type) || type == dtype::e8m0 || type == dtype::e4m3;
}

/// "bf16", "e4m3", ...: the spelling used in problem lines, messages and the command line.
[[nodiscard]] MOE64_API std::string_view name(dtype type) noexcept;

/// The inverse of name(); empty for an unknown spelling.
[[nodiscard]] MOE64_API std::optional<dtype> parse_dtype(std::string_view text) noexcept;

}  // namespace moe64
