#include "core/arena.hpp"

#include "core/fail.hpp"

#include <cstdint>

namespace moe64 {

tensor_view arena::take(dtype type, std::initializer_list<index_t> extents) {
  index_t const begin = align_up(bytes_, workspace_alignment);
  char* const start = data_ == nullptr ? nullptr : static_cast<char*>(data_) + begin;
  tensor_view const piece = tensor_view::contiguous(start, type, extents, device_);
  bytes_ = checked_add(begin, piece.span_bytes());
  return piece;
}

tensor_view bytes_of(workspace const& memory) {
  return tensor_view::contiguous(memory.data, dtype::uint8, {memory.bytes}, memory.device);
}

void check_workspace(char const* operation, char const* argument, workspace const& memory,
                     index_t needed, moe64::device where) {
  if (memory.bytes < needed || (needed > 0 && memory.data == nullptr)) {
    fail(errc::workspace_too_small, "[{}] {} has {} bytes at {}, {} are needed", operation,
         argument, memory.bytes, memory.data, needed);
  }
  if (needed > 0 && reinterpret_cast<std::uintptr_t>(memory.data) % workspace_alignment != 0) {
    fail(errc::workspace_too_small, "[{}] {} at {} is not aligned to {} bytes", operation, argument,
         memory.data, workspace_alignment);
  }
  if (needed > 0 && !(memory.device == where)) {
    fail(errc::device_mismatch, "[{}] {} is on {}, the stream on {}", operation, argument,
         to_string(memory.device), to_string(where));
  }
}

}  // namespace moe64
