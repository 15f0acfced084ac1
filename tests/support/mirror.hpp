#pragma once

#include "moe64/cuda.hpp"
#include "moe64/operands.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moe64::test {

/// Copies of host arrays in other memory: that of a CUDA device, or of the host. Arrays that
/// overlap on the host overlap there, at the same distances and the same alignment. Around each lie
/// bytes that read as NaN and must survive.
///
/// With MOE64_TEST_EXACT in the environment every array of a device is an allocation of its own,
/// with nothing behind it: for compute-sanitizer.
class mirror {
 public:
  explicit mirror(stream where) : where_(where) {}
  ~mirror();
  mirror(mirror const&) = delete;
  mirror& operator=(mirror const&) = delete;

  /// Take the host memory of all operands of a call into account.
  template <class Args>
  void add(Args args) {
    for_each_operand(args, [&](operand const& o) { add(o.tensor, o.access); });
  }
  /// Allocate and copy: after the last add.
  void upload();
  /// The same call in the other memory.
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
    std::uint8_t* begin = nullptr;  ///< where it lies in the other memory

    [[nodiscard]] index_t bytes() const { return host_end - host_begin; }
  };
  /// Regions that lie one after the other in the other memory, with guards around each.
  struct block {
    std::uint8_t* data = nullptr;
    index_t bytes = 0;
    std::vector<std::size_t> regions;
  };
  void add(tensor_view const& tensor, access how);
  void move(tensor_view& tensor) const;
  void place_together();
  void place_apart();
  [[nodiscard]] std::uint8_t* allocate(index_t bytes);
  void copy(void* to, void const* from, index_t bytes) const;

  stream where_;
  std::vector<region> regions_;
  std::vector<block> blocks_;
  std::vector<cuda_buffer> device_memory_;
  std::vector<std::unique_ptr<std::uint8_t[]>> host_memory_;
};

/// Elements that a call has written and its twin, the same call in other host memory, has not
/// written with the same bits, in words; any NaN equals any NaN. Empty when there are none.
/// Workspaces are not compared, nor what a plan leaves unspecified.
template <class Args>
[[nodiscard]] std::string output_difference(Args call, Args twin);

[[nodiscard]] std::string tensor_difference(tensor_view const& found, tensor_view const& wanted);

/// The arrays that a call writes, without its workspaces.
template <class Args>
[[nodiscard]] std::vector<operand> outputs_of(Args& args) {
  std::vector<operand> all;
  for_each_operand(args, [&](operand const& o) {
    bool const lent = o.tensor.type == dtype::uint8 && o.access == access::write;
    if (o.access == access::write && !lent) all.push_back(o);
  });
  return all;
}

template <class Args>
std::string output_difference(Args call, Args twin) {
  if constexpr (std::is_same_v<Args, plan_args>) {
    // Entries of row_to_slot past the last row are unspecified.
    auto const rows = static_cast<index_t const*>(twin.plan.expert_begin.data)[twin.plan.experts];
    call.plan.row_to_slot = call.plan.row_to_slot.slice(0, 0, rows);
    twin.plan.row_to_slot = twin.plan.row_to_slot.slice(0, 0, rows);
  }
  std::string all;
  auto const found = outputs_of(call), wanted = outputs_of(twin);
  for (std::size_t i = 0; i < found.size(); ++i) {
    std::string const text = tensor_difference(found[i].tensor, wanted[i].tensor);
    if (text.empty()) continue;
    all += std::string(found[i].argument) + " " + found[i].member + " " + text + "; ";
  }
  return all;
}

}  // namespace moe64::test
