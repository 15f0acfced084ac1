#pragma once

#include "moe64/index.hpp"

#include <cstdint>

namespace moe64::test {

/// Random numbers as a function of (seed, index): a test names the element that it looks at, and no
/// draw depends on how many were drawn before.
class random_source {
 public:
  explicit constexpr random_source(std::uint64_t seed) : seed_(mix(seed + 0x9e3779b97f4a7c15U)) {}

  [[nodiscard]] constexpr std::uint64_t bits(index_t i) const {
    return mix(seed_ + static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15U);
  }
  /// An integer of [0, bound).
  [[nodiscard]] constexpr index_t below(index_t i, index_t bound) const {
    return static_cast<index_t>(bits(i) % static_cast<std::uint64_t>(bound));
  }
  /// An integer of [low, high].
  [[nodiscard]] constexpr index_t between(index_t i, index_t low, index_t high) const {
    return low + below(i, high - low + 1);
  }
  /// A number of [low, high).
  [[nodiscard]] constexpr double uniform(index_t i, double low = -1.0, double high = 1.0) const {
    return low + (high - low) * (static_cast<double>(bits(i) >> 11) * 0x1p-53);
  }
  [[nodiscard]] constexpr bool chance(index_t i, double share) const {
    return uniform(i, 0.0, 1.0) < share;
  }

 private:
  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  std::uint64_t seed_;
};

}  // namespace moe64::test
