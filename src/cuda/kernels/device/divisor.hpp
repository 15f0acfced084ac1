#pragma once

#include "moe64/index.hpp"

#include <bit>
#include <cstdint>

namespace moe64::cuda {

/// What kernels divide by: counts below 2^31 by a multiplication with 2^(32 + shift) / by, rounded
/// up.
struct divisor {
  index_t by = 1;
  std::uint32_t magic = 0;  ///< 0: divide
  std::uint32_t shift = 0;
};

[[nodiscard]] constexpr divisor divide_by(index_t by) {
  divisor result{.by = by};
  if (by < 2 || by >= (index_t{1} << 31)) return result;
  auto const number = static_cast<std::uint64_t>(by);
  auto const width = static_cast<std::uint32_t>(std::bit_width(number - 1));  // narrow-ok: <= 31
  result.magic = static_cast<std::uint32_t>(  // narrow-ok: by is more than 2^(width - 1)
      ((std::uint64_t{1} << (31 + width)) + number - 1) / number);
  result.shift = width - 1;
  return result;
}

/// count / by of a count below 2^31.
[[nodiscard]] constexpr std::uint32_t divided_short(std::uint32_t count, divisor const& d) {
  if (d.magic == 0) return d.by == 1 ? count : 0;
  auto const product = std::uint64_t{count} * d.magic;
  return static_cast<std::uint32_t>(product >> 32) >> d.shift;  // narrow-ok: the upper half
}

/// count / by of any count that is not negative.
[[nodiscard]] constexpr index_t divided(index_t count, divisor const& d) {
  if ((count >> 31) == 0) {
    return divided_short(static_cast<std::uint32_t>(count), d);  // narrow-ok: tested
  }
  return count / d.by;
}

}  // namespace moe64::cuda
