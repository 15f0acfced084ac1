#pragma once

#include "cases/mapping.hpp"
#include "moe64/cuda.hpp"
#include "moe64/operands.hpp"
#include "moe64/tensor.hpp"

#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace moe64::cases {

/// What a buffer is for, which decides who fills it and when.
enum class purpose {
  input,   ///< filled once; an operation only reads it
  output,  ///< poisoned before each run
  scratch  ///< poisoned before each run
};

/// All memory of one case: one mapping per buffer, with canary bytes directly behind what was asked
/// for. On a CUDA device every buffer has a twin there, canaries included: the host fills the
/// inputs and reads the outputs, calls see the twins.
class arena {
 public:
  /// Pages up to `limit` bytes may be touched.
  explicit arena(moe64::device where, index_t limit = available_memory())
      : device_(where), limit_(limit) {}

  /// `touched` says how much of it will be filled; -1: all. Throws errc::out_of_memory rather than
  /// let the system end the process later.
  void* allocate(std::string name, purpose use, index_t bytes, index_t touched = -1);
  /// A contiguous [extents] tensor.
  tensor_view tensor(std::string name, purpose use, dtype type,
                     std::initializer_list<index_t> extents, index_t touched = -1);
  workspace scratch(std::string name, index_t bytes);

  /// On a CUDA device: inputs of more than `bytes` bytes repeat themselves after about as many.
  /// They are made sooner, and for whoever asks for the time and not for the result as good as any.
  void repeat_inputs_after(index_t bytes) { repeat_after_ = bytes; }
  /// Entries of dimension 0 of an input that whoever made it must fill: all, or the first ones,
  /// which upload() repeats.
  [[nodiscard]] index_t entries_to_fill(tensor_view const& input);

  /// Make the twins, and copy what the inputs hold: when all buffers are allocated and filled.
  void upload();
  /// The same call in memory that the device sees.
  template <class Args>
  [[nodiscard]] Args there(Args args) const {
    if (!copies_) return args;
    for_each_operand(args, [&](operand const& o) { o.tensor.data = twin_of(o.tensor.data); });
    return args;
  }
  /// Copy outputs back, when the work on them is done.
  void download() const;

  /// Outputs and scratch to 0xff in every byte, which is NaN in every type that has one; all
  /// canaries renewed.
  void poison();
  /// Names of the buffers behind which something was written.
  [[nodiscard]] std::vector<std::string> damaged() const;
  /// Bytes of all buffers of one purpose.
  [[nodiscard]] index_t bytes(purpose use) const;
  /// Bytes that all twins take on the device.
  [[nodiscard]] index_t device_bytes() const;
  /// Bytes that its users said they will touch.
  [[nodiscard]] index_t touched() const noexcept { return touched_; }
  [[nodiscard]] moe64::device device() const noexcept { return device_; }
  [[nodiscard]] index_t limit() const noexcept { return limit_; }

 private:
  struct buffer {
    std::string name;
    purpose use;
    index_t bytes;
    mapping memory;
    index_t filled = bytes;  ///< of an input, by its user
    std::optional<cuda_buffer> twin = {};
  };
  [[nodiscard]] void* twin_of(void* data) const;

  std::vector<buffer> buffers_;
  moe64::device device_;
  index_t limit_;
  index_t touched_ = 0;
  index_t repeat_after_ = std::numeric_limits<index_t>::max();
  std::optional<cuda_queue> copies_;  ///< between buffers and their twins
};

/// Every byte of a poisoned buffer.
inline constexpr unsigned char poison_byte = 0xff;

}  // namespace moe64::cases
