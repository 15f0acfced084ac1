#pragma once

#include "moe64/index.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moe64::checkpoint {

/// SHA-256 (FIPS 180-4) of bytes that come in pieces: what the Hub and Git LFS name files by.
class sha256 {
 public:
  void add(std::span<std::byte const> bytes) noexcept;
  /// 64 hexadecimal digits. Nothing may be added any more.
  [[nodiscard]] std::string finish() noexcept;

 private:
  static constexpr std::size_t block = 64;
  void take(std::byte const* data) noexcept;

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, block> rest_{};
  std::uint64_t total_ = 0;  // its remainder modulo 64 is how much of rest_ is used
};

}  // namespace moe64::checkpoint
