#pragma once

#include "moe64/index.hpp"

#include <cstdint>
#include <string_view>

namespace moe64::checkpoint {

/// Random numbers by position: the same for the same seed and name, in whatever order and on
/// whatever machine they are taken.
class synth_numbers {
 public:
  synth_numbers(std::uint64_t seed, std::string_view name, std::uint64_t salt = 0) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
    for (char const c : name) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    }
    key_ = mixed(mixed(seed) ^ hash ^ mixed(salt + 1));
  }

  /// Close to normal: the sum of eight uniform numbers, in integers. Mean 0, deviation 1.
  [[nodiscard]] float normal(index_t position) const noexcept {
    auto const at = 2 * static_cast<std::uint64_t>(position);
    std::uint64_t const first = mixed(key_ + at * golden);
    std::uint64_t const second = mixed(key_ + (at + 1) * golden);
    auto const sum = static_cast<std::int32_t>(lanes(first) + lanes(second));  // narrow-ok: < 2^19
    return static_cast<float>(sum - mean) * step;
  }
  static constexpr float largest = 4.9F;  ///< no number is further from 0

 private:
  static constexpr std::uint64_t golden = 0x9e3779b97f4a7c15U;
  static constexpr std::int32_t mean = 262140;    // 8 * 65535 / 2
  static constexpr float step = 1.0F / 53509.8F;  // 1 / (65536 * sqrt(8 / 12))

  static constexpr std::uint64_t mixed(std::uint64_t value) noexcept {  // splitmix64
    value += golden;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
    return value ^ (value >> 31);
  }
  static constexpr std::uint64_t lanes(std::uint64_t value) noexcept {
    return (value & 0xffffU) + ((value >> 16) & 0xffffU) + ((value >> 32) & 0xffffU) +
           (value >> 48);
  }

  std::uint64_t key_ = 0;
};

}  // namespace moe64::checkpoint
