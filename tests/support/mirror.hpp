#pragma once

#include "moe64/cuda.hpp"
#include "moe64/operands.hpp"

#include <map>
#include <memory>
#include <vector>

namespace moe64::test {

/// Copies of host arrays on a CUDA device. Arrays that overlap on the host overlap there, at the
/// same distances and the same alignment. Around each lies a pattern that must survive.
class mirror {
 public:
  explicit mirror(stream where) : where_(where) {}

  /// Take the host memory of all operands of a call into account.
  template <class Args>
  void add(Args args) {
    for_each_operand(args, [&](operand const& o) { add(o.tensor, o.access); });
  }
  /// Allocate and copy: after the last add.
  void upload();
  /// The same call on the device.
  template <class Args>
  [[nodiscard]] Args moved(Args args) const {
    for_each_operand(args, [&](operand const& o) { move(o.tensor); });
    return args;
  }
  /// Wait for the stream, copy everything back that a call may write, and report what was written
  /// outside of it or in arrays that are only read: empty when nothing was.
  [[nodiscard]] std::string download();

 private:
  struct region {
    std::uint8_t* host_begin;
    std::uint8_t* host_end;
    bool written;
    std::shared_ptr<cuda_buffer> memory;
    std::uint8_t* device_begin;
  };
  void add(tensor_view const& tensor, access how);
  void move(tensor_view& tensor) const;

  stream where_;
  std::vector<region> regions_;
};

}  // namespace moe64::test
