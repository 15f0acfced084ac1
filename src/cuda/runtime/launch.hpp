#pragma once

#include "cuda/runtime/device.hpp"
#include "cuda/runtime/kernel.hpp"
#include "moe64/operands.hpp"

/// The one way to run something on a CUDA device.
namespace moe64::cuda {

/// A grid of one dimension. Kernels take their tasks in steps of the grid, so that any number of
/// blocks computes everything.
struct grid {
  index_t blocks;            ///< 0: there is nothing to do
  int threads;               ///< per block
  index_t shared_bytes = 0;  ///< per block, beside what the kernel declares
};

/// The launches of one operation on one stream. Making it makes the stream's device current and
/// refuses operands that are not on it; the end of its life restores the device that was current,
/// on every way out. Launches return when the work is queued: nothing here allocates or waits.
class launcher {
 public:
  template <class Args>
  launcher(char const* operation, Args const& args, stream where) : launcher(operation, where) {
    check_operands(args);
  }
  ~launcher();
  launcher(launcher const&) = delete;
  launcher& operator=(launcher const&) = delete;

  /// Of a further call that is made by the same launches.
  template <class Args>
  void check_operands(Args args) const {
    for_each_operand(args, [&](operand const& o) {
      if (o.tensor.span() == 0) return;
      check_owner(operation_, o.argument, o.member, o.tensor.data, where_.device);
    });
  }

  template <class Parameters>
  void launch(kernel<Parameters> const& what, grid const& shape, Parameters const& parameters) {
    launch({what.name, reinterpret_cast<void const*>(what.function), what.early}, shape,
           &parameters);
  }
  /// Set `bytes` bytes of device memory.
  void fill(void* data, int byte, index_t bytes);

  /// Multiprocessors of the device.
  [[nodiscard]] index_t multiprocessors() const;
  /// Shared memory that a block may have on the device.
  [[nodiscard]] index_t shared_bytes() const;
  /// As many blocks as there are tasks, but no more than `waves` times the multiprocessors hold
  /// when each holds `blocks_each`: the kernel walks over the rest.
  [[nodiscard]] index_t blocks_for(index_t tasks, index_t blocks_each) const;

 private:
  struct any_kernel {
    char const* name;
    void const* function;
    bool early;
  };
  launcher(char const* operation, stream where);
  void launch(any_kernel const& what, grid const& shape, void const* parameters);
  /// Whether kernels of the device can begin before the last one has ended.
  [[nodiscard]] bool can_use_pdl() const;

  char const* operation_;
  stream where_;
  device_guard guard_;
};

}  // namespace moe64::cuda
