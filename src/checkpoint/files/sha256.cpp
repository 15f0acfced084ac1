#include "checkpoint/files/sha256.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace moe64::checkpoint {
namespace {

constexpr std::array<std::uint32_t, 64> constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(std::byte const* data) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8U | std::to_integer<std::uint32_t>(data[i]);
  return value;
}

}  // namespace

void sha256::take(std::byte const* data) noexcept {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(data + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    std::uint32_t const early = w[i - 15];
    std::uint32_t const late = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(early, 7) ^ std::rotr(early, 18) ^ early >> 3U) + w[i - 7] +
           (std::rotr(late, 17) ^ std::rotr(late, 19) ^ late >> 10U);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    std::uint32_t const first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                ((e & f) ^ (~e & g)) + constants[i] + w[i];
    std::uint32_t const second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  std::array<std::uint32_t, 8> const added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
}

void sha256::add(std::span<std::byte const> bytes) noexcept {
  while (!bytes.empty()) {
    std::size_t const used = static_cast<std::size_t>(total_ % block);
    if (used == 0 && bytes.size() >= block) {
      take(bytes.data());
      total_ += block;
      bytes = bytes.subspan(block);
      continue;
    }
    std::size_t const count = std::min(block - used, bytes.size());
    std::memcpy(rest_.data() + used, bytes.data(), count);
    total_ += count;
    bytes = bytes.subspan(count);
    if (used + count == block) take(rest_.data());
  }
}

std::string sha256::finish() noexcept {
  std::uint64_t const bits = total_ * 8;
  std::array<std::byte, block + 8> padding{std::byte{0x80}};
  auto const used = static_cast<std::size_t>(total_ % block);
  std::size_t const zeros = (used < 56 ? 56 : 120) - used;
  for (std::size_t i = 0; i < 8; ++i) {
    padding[zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  }
  add(std::span(padding).first(zeros + 8));
  std::string digits;
  for (std::uint32_t const word : state_) digits += fmt::format("{:08x}", word);
  return digits;
}

}  // namespace moe64::checkpoint
