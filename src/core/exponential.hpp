#pragma once

#include <bit>
#include <cstdint>

/// exp for routing. One function for host and device, made of double products and sums alone: the
/// chosen experts and their weights have the same bits everywhere, whatever the C library.
namespace moe64 {

/// exp(x), wrong by 2^-15 units in the last place besides its rounding. Infinity and zero where the
/// result leaves f32, subnormal numbers before that; NaN stays NaN.
[[nodiscard]] constexpr float exp_f32(float x) noexcept {
  // Past 104 on either side everything rounds to infinity or to zero. Compared as integers, which
  // compilers turn into vectors more readily than floats that may be NaN.
  auto const bits = std::bit_cast<std::int32_t>(x);
  std::int32_t const magnitude = bits & 0x7fffffff;
  constexpr auto bound = std::bit_cast<std::int32_t>(104.0F);
  constexpr std::int32_t infinity = 0x7f800000;
  bool const outside = (magnitude > bound) & (magnitude <= infinity);
  double const bounded = std::bit_cast<float>(outside ? bound | (bits & ~0x7fffffff) : bits);
  // bounded = n ln(2) + r. The shifter leaves n in the lowest bits of the sum.
  constexpr double shifter = 0x1.8p52;
  double const shifted = bounded * 0x1.71547652b82fep+0 + shifter;
  double const r = bounded - (shifted - shifter) * 0x1.62e42fefa39efp-1;
  // The series of exp in pairs, which do not wait for each other.
  double const r2 = r * r;
  double const r4 = r2 * r2;
  double const low = (1.0 + r) + (1.0 / 2 + r * (1.0 / 6)) * r2;
  double const middle = (1.0 / 24 + r * (1.0 / 120)) + (1.0 / 720 + r * (1.0 / 5040)) * r2;
  double const high = 1.0 / 40320 + r * (1.0 / 362880);
  double const sum = low + (middle + high * r4) * r4;
  auto const power = std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) + 1023) << 52);
  return static_cast<float>(sum * power);
}

}  // namespace moe64
