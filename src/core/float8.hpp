#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

/// Bit-exact conversions between f32 and the small number formats. Plain integer code without
/// tables of rounding cases: the same functions are meant for host and device. Rounding is to
/// nearest, ties to even. Decoding keeps -0 and NaN. None of it depends on the flush-to-zero state
/// of the thread.
namespace moe64 {

/// A binary format of 1 sign, `exponent` and `mantissa` bits. `top` is the code of the largest
/// finite number. Saturating formats send overflow and infinity to it; the others have the usual
/// infinity above it.
struct float_format {
  int exponent;
  int mantissa;
  std::uint32_t top;
  bool saturates;
  std::uint32_t nan;

  [[nodiscard]] constexpr int bias() const noexcept { return (1 << (exponent - 1)) - 1; }
  [[nodiscard]] constexpr int width() const noexcept { return 1 + exponent + mantissa; }
};

inline constexpr float_format e4m3_format{4, 3, 0x7e, true, 0x7f};
inline constexpr float_format e5m2_format{5, 2, 0x7b, true, 0x7f};
inline constexpr float_format e2m1_format{2, 1, 0x7, true,
                                          0x7};  // has no NaN: it becomes the largest number
inline constexpr float_format f16_format{5, 10, 0x7bff, false, 0x7e00};

/// The number of `code` in `format`; NaN and infinity only where the format has them.
template <float_format Format>
[[nodiscard]] constexpr float decode_float(std::uint32_t code) noexcept {
  constexpr int sign_shift = Format.width() - 1;
  std::uint32_t const magnitude = code & ((1U << sign_shift) - 1U);
  std::uint32_t const sign = (code >> sign_shift) << 31;
  if (magnitude > Format.top) {
    constexpr std::uint32_t infinity = Format.top + 1;
    bool const is_infinity = Format.exponent == 5 && magnitude == infinity;
    return std::bit_cast<float>(sign | (is_infinity ? 0x7f800000U : 0x7fc00000U));
  }
  std::uint32_t const exponent = magnitude >> Format.mantissa;
  if (exponent != 0) {
    std::uint32_t const rebias = 127U - static_cast<std::uint32_t>(Format.bias());
    return std::bit_cast<float>(sign | ((magnitude << (23 - Format.mantissa)) + (rebias << 23)));
  }
  // Subnormal: an integer count of the smallest step, which is a normal f32.
  constexpr auto step_exponent =
      static_cast<std::uint32_t>(127 + 1 - Format.bias() - Format.mantissa);
  auto const step = std::bit_cast<float>(step_exponent << 23);
  float const value = static_cast<float>(magnitude) * step;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

/// The code of the number of `format` that is nearest to `value`.
template <float_format Format>
[[nodiscard]] constexpr std::uint32_t encode_float(float value) noexcept {
  constexpr int drop = 23 - Format.mantissa;
  constexpr auto rebias = (127U - static_cast<std::uint32_t>(Format.bias())) << 23;
  constexpr std::uint32_t smallest_normal = rebias + (1U << 23);
  constexpr std::uint32_t largest = (Format.top << drop) + rebias;
  auto const bits = std::bit_cast<std::uint32_t>(value);
  std::uint32_t const magnitude = bits & 0x7fffffffU;
  std::uint32_t const sign = (bits >> 31) << (Format.width() - 1);
  if (magnitude > 0x7f800000U) return Format.nan;
  if (magnitude < smallest_normal) {
    // Adding this power of two makes the f32 addition itself round to the subnormal step.
    constexpr auto exponent = static_cast<std::uint32_t>(127 + 1 - Format.bias() + drop);
    constexpr std::uint32_t shifter = exponent << 23;
    float const shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(shifter);
    return sign | (std::bit_cast<std::uint32_t>(shifted) - shifter);
  }
  if (Format.saturates && magnitude >= largest) return sign | Format.top;
  std::uint32_t const rounded = magnitude + ((1U << (drop - 1)) - 1U) + ((magnitude >> drop) & 1U);
  std::uint32_t const code = (rounded - rebias) >> drop;
  return sign | (code > Format.top ? Format.top + 1 : code);
}

[[nodiscard]] constexpr float decode_bf16(std::uint16_t code) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

/// NaN stays NaN (made quiet, sign and upper payload kept); overflow becomes infinity.
[[nodiscard]] constexpr std::uint16_t encode_bf16(float value) noexcept {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// 2^(code - 127); 0xff is NaN.
[[nodiscard]] constexpr float decode_e8m0(std::uint8_t code) noexcept {
  if (code == 0xff) return std::bit_cast<float>(0x7fc00000U);
  if (code == 0) return std::bit_cast<float>(0x00400000U);
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

/// The smallest power of two that is not below `value`, within the range of the format; NaN and
/// infinity become NaN; zero and negative numbers the smallest power.
[[nodiscard]] constexpr std::uint8_t encode_e8m0_up(float value) noexcept {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) >= 0x7f800000U) return 0xff;
  if ((bits >> 31) != 0 || bits <= 0x00400000U) return 0;
  std::uint32_t const exponent = (bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1U : 0U);
  return static_cast<std::uint8_t>(exponent > 254 ? 254 : exponent);
}

/// Nearest integer, ties to even, within [low, high]; NaN becomes 0.
[[nodiscard]] constexpr int round_to_integer(float value, int low, int high) noexcept {
  if (!(value == value)) return 0;
  if (value <= static_cast<float>(low)) return low;
  if (value >= static_cast<float>(high)) return high;
  // 1.5 * 2^23: the sum keeps no fraction bits, so the addition rounds to nearest even.
  constexpr float shifter = 12582912.0F;
  return static_cast<int>((value + shifter) - shifter);
}

/// A nibble as two's complement, -8..7.
[[nodiscard]] constexpr int decode_int4(std::uint32_t nibble) noexcept {
  return static_cast<int>((nibble & 0xfU) ^ 8U) - 8;
}

namespace tables {

template <float_format Format>
inline constexpr auto decoded = [] {
  std::array<float, std::size_t{1} << Format.width()> table{};
  for (std::uint32_t code = 0; code < table.size(); ++code) {
    table[code] = decode_float<Format>(code);
  }
  return table;
}();

}  // namespace tables

}  // namespace moe64
