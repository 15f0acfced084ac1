#include "cases/arena.hpp"

#include "fmt/format.h"
#include "moe64/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace moe64::cases {
namespace {

constexpr index_t canary_bytes = 64;

/// Differs from the poison, from zero and from its neighbours.
std::byte canary(index_t i) { return static_cast<std::byte>(0x35 + 7 * (i % 16)); }

}  // namespace

void* arena::allocate(std::string name, purpose use, index_t bytes, index_t touched) {
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

index_t arena::entries_to_fill(tensor_view const& input) {
  index_t const entry = input.stride[0] * bits(input.type) / 8;
  if (device_.kind == device_kind::cpu || input.span_bytes() <= repeat_after_ || entry == 0) {
    return input.extent[0];
  }
  index_t const entries = std::min(input.extent[0], ceil_div(repeat_after_, entry));
  for (buffer& b : buffers_) {
    if (b.memory.data() == input.data) b.filled = entries * entry;
  }
  return entries;
}

void arena::upload() {
  if (device_.kind == device_kind::cpu) return;
  if (!copies_) copies_.emplace(device_);
  for (buffer& b : buffers_) {
    if (b.twin) continue;
    b.twin.emplace(b.bytes + canary_bytes, device_);
    auto* const twin = static_cast<std::byte*>(b.twin->memory().data);
    cuda_copy(twin + b.bytes, b.memory.data() + b.bytes, canary_bytes, copies_->get());
    if (b.use != purpose::input) continue;
    cuda_copy(twin, b.memory.data(), b.filled, copies_->get());
    for (index_t done = b.filled; done < b.bytes;) {
      index_t const more = std::min(done, b.bytes - done);
      cuda_copy(twin + done, twin, more, copies_->get());
      done += more;
    }
  }
  cuda_wait(copies_->get());
}

void arena::download() const {
  if (!copies_) return;
  for (buffer const& b : buffers_) {
    if (!b.twin) continue;
    // Of what an operation keeps for itself and of what it only reads the canaries are enough.
    index_t const begin = b.use == purpose::output ? 0 : b.bytes;
    auto const* const from = static_cast<std::byte const*>(b.twin->memory().data);
    cuda_copy(b.memory.data() + begin, from + begin, b.bytes + canary_bytes - begin,
              copies_->get());
  }
  cuda_wait(copies_->get());
}

void* arena::twin_of(void* data) const {
  auto const address = reinterpret_cast<std::uintptr_t>(data);
  for (buffer const& b : buffers_) {
    auto const begin = reinterpret_cast<std::uintptr_t>(b.memory.data());
    auto const bytes = static_cast<std::uintptr_t>(b.bytes);
    if (!b.twin || address < begin || address > begin + bytes) continue;
    return static_cast<std::byte*>(b.twin->memory().data) + (address - begin);
  }
  return data;
}

index_t arena::device_bytes() const {
  index_t sum = 0;
  for (buffer const& b : buffers_) sum += b.twin ? b.twin->memory().bytes : 0;
  return sum;
}

void arena::poison() {
  for (buffer const& b : buffers_) {
    for (index_t i = b.bytes; i < b.memory.bytes(); ++i) b.memory.data()[i] = canary(i - b.bytes);
    bool const written = b.use != purpose::input;
    if (!b.twin) {
      if (written) std::memset(b.memory.data(), poison_byte, static_cast<std::size_t>(b.bytes));
      continue;
    }
    auto* const twin = static_cast<std::byte*>(b.twin->memory().data);
    if (written) cuda_fill(twin, poison_byte, b.bytes, copies_->get());
    cuda_copy(twin + b.bytes, b.memory.data() + b.bytes, canary_bytes, copies_->get());
  }
  if (copies_) cuda_wait(copies_->get());
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
