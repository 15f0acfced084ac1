#include "checkpoint/files/checksum.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace moe64::checkpoint {
namespace {

constexpr std::uint64_t prime1 = 0x9E3779B185EBCA87;
constexpr std::uint64_t prime2 = 0xC2B2AE3D27D4EB4F;
constexpr std::uint64_t prime3 = 0x165667B19E3779F9;
constexpr std::uint64_t prime4 = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t prime5 = 0x27D4EB2F165667C5;

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

template <class Word>
std::uint64_t load(std::byte const* from) noexcept {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t word) noexcept {
  return std::rotl(lane + word * prime2, 31) * prime1;
}

void add_stripe(std::array<std::uint64_t, 4>& lanes, std::byte const* from) noexcept {
  for (std::size_t i = 0; i < 4; ++i) {
    lanes[i] = round(lanes[i], load<std::uint64_t>(from + 8 * i));
  }
}

}  // namespace

void checksum::add(std::span<std::byte const> bytes) noexcept {
  std::size_t const used = total_ % stripe;
  total_ += bytes.size();
  if (used != 0 || bytes.size() < stripe) {
    std::size_t const taken = std::min(bytes.size(), stripe - used);
    std::copy_n(bytes.begin(), taken, rest_.begin() + static_cast<std::ptrdiff_t>(used));
    bytes = bytes.subspan(taken);
    if (used + taken < stripe) return;
    add_stripe(lanes_, rest_.data());
  }
  std::array<std::uint64_t, 4> lanes = lanes_;  // in registers
  for (; bytes.size() >= stripe; bytes = bytes.subspan(stripe)) add_stripe(lanes, bytes.data());
  lanes_ = lanes;
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
}

std::uint64_t checksum::value() const noexcept {
  std::uint64_t hash = prime5;
  if (total_ >= stripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (std::uint64_t const lane : lanes_) hash = (hash ^ round(0, lane)) * prime1 + prime4;
  }
  hash += total_;
  std::byte const* at = rest_.data();
  std::byte const* const end = at + total_ % stripe;
  for (; end - at >= 8; at += 8) {
    hash = std::rotl(hash ^ round(0, load<std::uint64_t>(at)), 27) * prime1 + prime4;
  }
  if (end - at >= 4) {
    hash = std::rotl(hash ^ load<std::uint32_t>(at) * prime1, 23) * prime2 + prime3;
    at += 4;
  }
  for (; at != end; ++at) hash = std::rotl(hash ^ load<std::uint8_t>(at) * prime5, 11) * prime1;
  hash = (hash ^ hash >> 33) * prime2;
  hash = (hash ^ hash >> 29) * prime3;
  return hash ^ hash >> 32;
}

}  // namespace moe64::checkpoint
