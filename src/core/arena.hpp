#pragma once

#include "moe64/tensor.hpp"

#include <initializer_list>

namespace moe64 {

/// Cuts one block of caller's memory into aligned tensors. Without memory it only adds up what the
/// same cuts would need, so a size query and the real run are one piece of code and agree to the
/// byte.
class arena {
 public:
  explicit arena(moe64::device where) : device_(where) {}
  /// Memory that is needed has been checked to be on `where`; when none is, it may say anything.
  arena(workspace const& memory, moe64::device where) : data_(memory.data), device_(where) {}

  /// The next piece: a contiguous tensor. Its end, not the alignment behind it, counts into
  /// bytes().
  [[nodiscard]] tensor_view take(dtype type, std::initializer_list<index_t> extents);

  [[nodiscard]] index_t bytes() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  index_t bytes_ = 0;
  moe64::device device_;
};

/// The memory of a workspace as a tensor [bytes] uint8.
[[nodiscard]] tensor_view bytes_of(workspace const& memory);

/// errc::workspace_too_small or errc::device_mismatch unless `memory` serves `needed` bytes on
/// `where`.
void check_workspace(char const* operation, char const* argument, workspace const& memory,
                     index_t needed, moe64::device where);

}  // namespace moe64
