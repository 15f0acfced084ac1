#include "support/mirror.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace moe64::test {
namespace {

/// Bytes before and behind each region, and what is in them.
constexpr index_t guard_bytes = 256;
constexpr std::uint8_t guard_byte = 0xa5;

/// Distances to a multiple of this are the same on both sides.
constexpr std::uintptr_t kept_alignment = 256;

}  // namespace

void mirror::add(tensor_view const& tensor, access how) {
  index_t const bytes = tensor.span_bytes();
  if (bytes == 0) return;
  auto* const begin = static_cast<std::uint8_t*>(tensor.data);
  region added{begin, begin + bytes, how == access::write, nullptr, nullptr};
  std::vector<region> kept;
  for (region const& other : regions_) {
    if (other.host_end <= added.host_begin || added.host_end <= other.host_begin) {
      kept.push_back(other);
      continue;
    }
    added.host_begin = std::min(added.host_begin, other.host_begin);
    added.host_end = std::max(added.host_end, other.host_end);
    added.written = added.written || other.written;
  }
  kept.push_back(added);
  regions_ = std::move(kept);
}

void mirror::upload() {
  for (region& r : regions_) {
    index_t const shift =
        static_cast<index_t>(reinterpret_cast<std::uintptr_t>(r.host_begin) % kept_alignment);
    index_t const bytes = r.host_end - r.host_begin;
    index_t const whole = guard_bytes + shift + bytes + guard_bytes;
    r.memory = std::make_shared<cuda_buffer>(whole, where_.device);
    auto* const first = static_cast<std::uint8_t*>(r.memory->memory().data);
    cuda_fill(first, guard_byte, whole, where_);
    r.device_begin = first + guard_bytes + shift;
    cuda_copy(r.device_begin, r.host_begin, bytes, where_);
  }
}

void mirror::move(tensor_view& tensor) const {
  tensor.device = where_.device;
  auto* const data = static_cast<std::uint8_t*>(tensor.data);
  for (region const& r : regions_) {
    if (data < r.host_begin || data >= r.host_end) continue;
    tensor.data = r.device_begin + (data - r.host_begin);
    return;
  }
}

std::string mirror::download() {
  std::string damage;
  for (region const& r : regions_) {
    workspace const memory = r.memory->memory();
    std::vector<std::uint8_t> all(static_cast<std::size_t>(memory.bytes));
    cuda_copy(all.data(), memory.data, memory.bytes, where_);
    cuda_wait(where_);
    index_t const front = r.device_begin - static_cast<std::uint8_t*>(memory.data);
    index_t const bytes = r.host_end - r.host_begin;
    auto const is_guard = [](std::uint8_t byte) { return byte == guard_byte; };
    if (!std::all_of(all.begin(), all.begin() + front, is_guard)) damage += " before an array";
    if (!std::all_of(all.begin() + front + bytes, all.end(), is_guard))
      damage += " behind an array";
    auto const* const inside = all.data() + front;
    if (r.written) {
      std::memcpy(r.host_begin, inside, static_cast<std::size_t>(bytes));
    } else if (std::memcmp(r.host_begin, inside, static_cast<std::size_t>(bytes)) != 0) {
      damage += " in an array that is only read";
    }
  }
  return damage.empty() ? "" : fmt::format("the device wrote{}", damage);
}

}  // namespace moe64::test
