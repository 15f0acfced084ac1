#include "support/mirror.hpp"

#include "oracle/oracle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace moe64::test {
namespace {

/// Bytes before and behind each region, and what is in them: NaN in every type that has one.
constexpr index_t guard_bytes = 256;
constexpr std::uint8_t guard_byte = 0xff;

/// Distances to a multiple of this are the same on both sides.
constexpr index_t kept_alignment = 256;

index_t misalignment(void const* data) {
  return static_cast<index_t>(reinterpret_cast<std::uintptr_t>(data)) % kept_alignment;
}

/// Bits of one element.
std::uint64_t code_at(tensor_view const& v, index_t i, index_t j, index_t k) {
  index_t const place = i * v.stride[0] + j * v.stride[1] + k * v.stride[2];
  index_t const width = bits(v.type);
  auto const* const data = static_cast<std::uint8_t const*>(v.data);
  if (width == 4) return data[place / 2] >> (place % 2 == 0 ? 0 : 4) & 0xf;
  std::uint64_t code = 0;
  std::memcpy(&code, data + place * width / 8, static_cast<std::size_t>(width / 8));
  return code;
}

std::size_t size(index_t bytes) { return static_cast<std::size_t>(bytes); }

bool wants_exact_allocations() {
  static bool const wanted = std::getenv("MOE64_TEST_EXACT") != nullptr;
  return wanted;
}

/// Device memory for the next mirror of this thread: a test makes thousands of calls, and an
/// allocation takes longer than most of them.
std::vector<cuda_buffer>& spare_buffers() {
  static thread_local std::vector<cuda_buffer> spare;
  return spare;
}

}  // namespace

mirror::~mirror() {
  if (wants_exact_allocations()) return;
  for (cuda_buffer& buffer : device_memory_) spare_buffers().push_back(std::move(buffer));
}

void mirror::add(tensor_view const& tensor, access how) {
  index_t const bytes = tensor.span_bytes();
  if (bytes == 0) return;
  auto* const begin = static_cast<std::uint8_t*>(tensor.data);
  region added{begin, begin + bytes, how == access::write};
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

std::uint8_t* mirror::allocate(index_t bytes) {
  if (where_.device.kind == device_kind::cpu) {
    host_memory_.push_back(std::make_unique<std::uint8_t[]>(size(bytes + kept_alignment)));
    std::uint8_t* const data = host_memory_.back().get();
    return data + (kept_alignment - misalignment(data)) % kept_alignment;
  }
  auto& spare = spare_buffers();
  auto const fits = std::find_if(spare.begin(), spare.end(), [&](cuda_buffer const& buffer) {
    workspace const memory = buffer.memory();
    return memory.device == where_.device && memory.bytes >= bytes;
  });
  if (fits != spare.end() && !wants_exact_allocations()) {
    device_memory_.push_back(std::move(*fits));
    spare.erase(fits);
  } else {
    spare.clear();  // too small: the next ones would be, too
    device_memory_.emplace_back(bytes, where_.device);
  }
  return static_cast<std::uint8_t*>(device_memory_.back().memory().data);
}

void mirror::copy(void* to, void const* from, index_t bytes) const {
  if (where_.device.kind == device_kind::cpu) {
    std::memcpy(to, from, size(bytes));
  } else {
    cuda_copy(to, from, bytes, where_);
  }
}

void mirror::place_together() {
  block all;
  std::vector<index_t> places;
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    index_t const begin = all.bytes + guard_bytes + misalignment(regions_[i].host_begin);
    places.push_back(begin);
    all.regions.push_back(i);
    all.bytes =
        ceil_div(begin + regions_[i].bytes() + guard_bytes, kept_alignment) * kept_alignment;
  }
  if (all.bytes == 0) return;
  all.data = allocate(all.bytes);
  for (std::size_t i = 0; i < regions_.size(); ++i) regions_[i].begin = all.data + places[i];
  blocks_.push_back(std::move(all));
}

void mirror::place_apart() {
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    index_t const shift = misalignment(regions_[i].host_begin);
    block one{allocate(shift + regions_[i].bytes()), shift + regions_[i].bytes(), {i}};
    regions_[i].begin = one.data + shift;
    blocks_.push_back(std::move(one));
  }
}

void mirror::upload() {
  bool const apart = wants_exact_allocations() && where_.device.kind != device_kind::cpu;
  apart ? place_apart() : place_together();
  for (block const& b : blocks_) {
    std::vector<std::uint8_t> bytes(size(b.bytes), guard_byte);
    for (std::size_t const i : b.regions) {
      region const& r = regions_[i];
      std::memcpy(bytes.data() + (r.begin - b.data), r.host_begin, size(r.bytes()));
    }
    copy(b.data, bytes.data(), b.bytes);
    if (where_.device.kind != device_kind::cpu) cuda_wait(where_);
  }
}

void mirror::move(tensor_view& tensor) const {
  tensor.device = where_.device;
  auto* const data = static_cast<std::uint8_t*>(tensor.data);
  for (region const& r : regions_) {
    if (data < r.host_begin || data >= r.host_end) continue;
    tensor.data = r.begin + (data - r.host_begin);
    return;
  }
}

std::string mirror::download() {
  std::string damage;
  for (block const& b : blocks_) {
    std::vector<std::uint8_t> all(size(b.bytes));
    copy(all.data(), b.data, b.bytes);
    if (where_.device.kind != device_kind::cpu) cuda_wait(where_);
    index_t guarded = 0;  // up to here everything has been looked at
    auto const expect_guards_to = [&](index_t end) {
      auto const begin = all.begin() + guarded;
      if (!std::all_of(begin, all.begin() + end,
                       [](std::uint8_t byte) { return byte == guard_byte; })) {
        damage += " around an array";
      }
    };
    for (std::size_t const i : b.regions) {
      region const& r = regions_[i];
      index_t const begin = r.begin - b.data;
      expect_guards_to(begin);
      guarded = begin + r.bytes();
      if (r.written) {
        std::memcpy(r.host_begin, all.data() + begin, size(r.bytes()));
      } else if (std::memcmp(r.host_begin, all.data() + begin, size(r.bytes())) != 0) {
        damage += " in an array that is only read";
      }
    }
    expect_guards_to(b.bytes);
  }
  return damage.empty() ? "" : fmt::format("the call wrote{}", damage);
}

std::string tensor_difference(tensor_view const& found, tensor_view const& wanted) {
  index_t const bytes = found.span_bytes();
  if (bytes == 0 || std::memcmp(found.data, wanted.data, size(bytes)) == 0) return "";
  index_t const rows = found.rank > 1 ? found.extent[1] : 1;
  index_t const cols = found.rank > 2 ? found.extent[2] : 1;
  for (index_t i = 0; i < found.extent[0]; ++i) {
    for (index_t j = 0; j < rows; ++j) {
      for (index_t k = 0; k < cols; ++k) {
        std::uint64_t const a = code_at(found, i, j, k), b = code_at(wanted, i, j, k);
        if (a == b) continue;
        double const x = oracle::at(found, i, j, k), y = oracle::at(wanted, i, j, k);
        if (std::isnan(x) && std::isnan(y)) continue;
        return fmt::format("[{}, {}, {}] is {} ({:#x}), on the CPU {} ({:#x})", i, j, k, x, a, y,
                           b);
      }
    }
  }
  return "";
}

}  // namespace moe64::test
