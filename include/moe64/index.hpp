#pragma once

#include "moe64/export.hpp"

#include <cstdint>
#include <limits>
#include <type_traits>

namespace moe64 {

/// Every count, offset, extent and stride. Signed, so that differences are legal and overflow is
/// seen by sanitizers; 64 bits, so that no tensor that fits a machine can overflow it.
using index_t = std::int64_t;

/// Report a product, sum or narrowing that left its type; throws errc::size_overflow with the
/// operands.
[[noreturn]] MOE64_API void throw_size_overflow(char const* operation, index_t left, index_t right);

/// left * right, or errc::size_overflow: the only legal product of sizes that come from outside.
[[nodiscard]] constexpr index_t checked_mul(index_t left, index_t right) {
  index_t product = 0;
  if (__builtin_mul_overflow(left, right, &product)) throw_size_overflow("multiply", left, right);
  return product;
}

/// left + right, or errc::size_overflow.
[[nodiscard]] constexpr index_t checked_add(index_t left, index_t right) {
  index_t sum = 0;
  if (__builtin_add_overflow(left, right, &sum)) throw_size_overflow("add", left, right);
  return sum;
}

/// The only narrowing of an index: value as T, or errc::size_overflow with the limit it broke.
template <class T>
[[nodiscard]] constexpr T narrow(index_t value) {
  static_assert(std::is_integral_v<T> && sizeof(T) < sizeof(index_t));
  if (value < static_cast<index_t>(std::numeric_limits<T>::min()) ||
      value > static_cast<index_t>(std::numeric_limits<T>::max())) {
    throw_size_overflow("narrow", value, static_cast<index_t>(std::numeric_limits<T>::max()));
  }
  return static_cast<T>(value);
}

/// Smallest number of blocks of `block` > 0 elements that cover `count` >= 0 elements.
[[nodiscard]] constexpr index_t ceil_div(index_t count, index_t block) {
  return count / block + (count % block != 0 ? 1 : 0);
}

/// `count` rounded up to a multiple of `alignment`, or errc::size_overflow.
[[nodiscard]] constexpr index_t align_up(index_t count, index_t alignment) {
  return checked_mul(ceil_div(count, alignment), alignment);
}

}  // namespace moe64
