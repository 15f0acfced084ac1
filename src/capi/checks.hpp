#pragma once

#include "core/fail.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>

namespace moe64::capi {

/// Names an argument in messages: "[gather] plan.status". A chain on the stack, turned into text
/// only when refused.
class argument {
 public:
  explicit constexpr argument(std::string_view operation) noexcept : name_(operation) {}

  /// A part of this argument; it must not outlive it.
  [[nodiscard]] constexpr argument operator[](std::string_view name) const noexcept {
    return argument(*this, name);
  }

  [[nodiscard]] std::string text() const {
    if (parent_ == nullptr) return "[" + std::string(name_) + "]";
    return parent_->text() + (parent_->parent_ == nullptr ? " " : ".") + std::string(name_);
  }

 private:
  constexpr argument(argument const& parent, std::string_view name) noexcept
      : parent_(&parent), name_(name) {}

  argument const* parent_ = nullptr;
  std::string_view name_;
};

/// *pointer, or errc::invalid_argument.
template <class T>
[[nodiscard]] T& required(T* pointer, argument const& at) {
  if (pointer == nullptr) fail(errc::invalid_argument, "{} is NULL", at.text());
  return *pointer;
}

/// The enumerators of every enumeration of moe64 count from 0 to `last`.
template <class Enum>
[[nodiscard]] Enum enumerator(std::uint8_t value, Enum last, argument const& at) {
  auto const limit = static_cast<std::uint8_t>(last);
  if (value > limit) {
    fail(errc::invalid_argument, "{} is {}, not one of 0 to {}", at.text(), value, limit);
  }
  return static_cast<Enum>(value);
}

[[nodiscard]] inline bool flag(std::uint8_t value, argument const& at) {
  if (value > 1) fail(errc::invalid_argument, "{} is {}, neither 0 nor 1", at.text(), value);
  return value == 1;
}

template <class Reserved>
void require_zero(Reserved const& reserved, argument const& at) {
  bool zero = false;
  if constexpr (std::is_array_v<Reserved>) {
    zero =
        std::all_of(std::begin(reserved), std::end(reserved), [](auto byte) { return byte == 0; });
  } else {
    zero = reserved == 0;
  }
  if (!zero) fail(errc::invalid_argument, "{}.reserved is not 0", at.text());
}

/// A copy of *given at the size this library knows: what an older caller's struct lacks is zero;
/// what a newer caller's has beyond it must be zero, because it would not be obeyed.
template <class Struct>
[[nodiscard]] Struct sized_copy(Struct const* given, argument const& at) {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  constexpr std::uint64_t largest = 1 << 16;  // more is not a size but memory that was never set
  std::uint64_t const size = required(given, at).struct_size;
  if (size < sizeof(std::uint64_t) || size % alignof(Struct) != 0 || size > largest) {
    fail(errc::invalid_argument, "{}.struct_size is {}, not a size (this library's is {})",
         at.text(), size, sizeof(Struct));
  }
  auto const* bytes = reinterpret_cast<unsigned char const*>(given);
  for (std::uint64_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      fail(errc::invalid_argument,
           "{}.struct_size is {}, this library's is {}, and byte {} beyond it is set", at.text(),
           size, sizeof(Struct), i);
    }
  }
  Struct copy = {};
  std::memcpy(&copy, bytes, std::min<std::uint64_t>(size, sizeof(Struct)));
  return copy;
}

/// As much of `answer` as the caller's struct has room for; its struct_size stays.
template <class Struct>
void answer_into(Struct& out, Struct const& answer, argument const& at) {
  (void)sized_copy(&out, at);  // a size that cannot be one is refused
  std::uint64_t const size = out.struct_size;
  constexpr std::uint64_t head = sizeof(std::uint64_t);
  std::memcpy(reinterpret_cast<unsigned char*>(&out) + head,
              reinterpret_cast<unsigned char const*>(&answer) + head,
              std::min<std::uint64_t>(size, sizeof(Struct)) - head);
}

}  // namespace moe64::capi
