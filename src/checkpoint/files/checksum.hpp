#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moe64::checkpoint {

/// XXH64 of bytes that come in pieces: against damage, not against an attacker. The same number as
/// `xxhsum -H1` prints.
class checksum {
 public:
  void add(std::span<std::byte const> bytes) noexcept;
  [[nodiscard]] std::uint64_t value() const noexcept;

 private:
  static constexpr std::size_t stripe = 32;
  static constexpr std::uint64_t prime1 = 0x9E3779B185EBCA87;
  static constexpr std::uint64_t prime2 = 0xC2B2AE3D27D4EB4F;

  std::array<std::uint64_t, 4> lanes_{prime1 + prime2, prime2, 0, 0 - prime1};
  std::array<std::byte, stripe> rest_{};
  std::uint64_t total_ = 0;  // its remainder modulo 32 is how much of rest_ is used
};

}  // namespace moe64::checkpoint
