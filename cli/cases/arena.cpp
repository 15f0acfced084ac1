#include "cases/arena.hpp"

#include "fmt/format.h"
#include "moe64/error.hpp"

#include <cstddef>
#include <cstring>
#include <utility>

namespace moe64::cases {
namespace {

constexpr index_t canary_bytes = 64;

/// Differs from the poison, from zero and from its neighbours.
std::byte canary(index_t i) { return static_cast<std::byte>(0x35 + 7 * (i % 16)); }

}  // namespace

void* arena::allocate(std::string name, purpose use, index_t bytes, index_t touched) {
  if (device_.kind != device_kind::cpu) {
    throw error(errc::unsupported, fmt::format("[case] no memory on {}: cases are built on the cpu",
                                               to_string(device_)));
  }
  index_t const sum = checked_add(touched_, touched < 0 ? bytes : touched);
  if (sum > limit_) {
    throw error(errc::out_of_memory,
                fmt::format("[case] {} brings the problem to {} bytes, and {} are available", name,
                            sum, limit_));
  }
  touched_ = sum;
  buffers_.push_back({std::move(name), use, bytes, mapping(checked_add(bytes, canary_bytes))});
  std::byte* const data = buffers_.back().memory.data();
  for (index_t i = bytes; i < buffers_.back().memory.bytes(); ++i) data[i] = canary(i - bytes);
  return data;
}

tensor_view arena::tensor(std::string name, purpose use, dtype type,
                          std::initializer_list<index_t> extents, index_t touched) {
  tensor_view view = tensor_view::contiguous(nullptr, type, extents, device_);
  view.data = allocate(std::move(name), use, view.span_bytes(), touched);
  return view;
}

workspace arena::scratch(std::string name, index_t bytes) {
  return {allocate(std::move(name), purpose::scratch, bytes), bytes, device_};
}

void arena::poison() {
  for (buffer const& b : buffers_) {
    if (b.use == purpose::input) continue;
    std::memset(b.memory.data(), poison_byte, static_cast<std::size_t>(b.bytes));
  }
  for (buffer const& b : buffers_) {
    for (index_t i = b.bytes; i < b.memory.bytes(); ++i) b.memory.data()[i] = canary(i - b.bytes);
  }
}

std::vector<std::string> arena::damaged() const {
  std::vector<std::string> names;
  for (buffer const& b : buffers_) {
    for (index_t i = b.bytes; i < b.memory.bytes(); ++i) {
      if (b.memory.data()[i] == canary(i - b.bytes)) continue;
      names.push_back(b.name);
      break;
    }
  }
  return names;
}

index_t arena::bytes(purpose use) const {
  index_t sum = 0;
  for (buffer const& b : buffers_) {
    if (b.use == use) sum = checked_add(sum, b.bytes);
  }
  return sum;
}

}  // namespace moe64::cases
