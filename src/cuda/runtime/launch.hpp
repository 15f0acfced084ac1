#pragma once

#include "cuda/runtime/device.hpp"
#include "cuda/runtime/kernel.hpp"
#include "moe64/operands.hpp"

/// The one way to run something on a CUDA device.
namespace moe64::cuda {

/// A grid of one dimension. Kernels walk over their tasks with a grid-stride loop, so that any
/// number of CTAs computes everything.
struct grid {
  index_t ctas;              ///< 0: there is nothing to do
  int threads;               ///< per CTA
  index_t shared_bytes = 0;  ///< per CTA, dynamic: what the kernel declares comes on top
};

/// As `ctas_per_sm` of launcher::ctas_for(): a CTA per task. CTAs that end after one task keep
/// memory busier than persistent ones.
inline constexpr index_t one_task_each = index_t{1} << 20;

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
    launch({what.name, reinterpret_cast<void const*>(what.function), what.pdl}, shape, &parameters);
  }
  /// Set `bytes` bytes of device memory.
  void fill(void* data, int byte, index_t bytes);

  [[nodiscard]] char const* operation() const { return operation_; }
  [[nodiscard]] moe64::device where() const { return where_.device; }
  /// Multiprocessors of the device.
  [[nodiscard]] index_t multiprocessors() const;
  /// Shared memory that a CTA may have on the device.
  [[nodiscard]] index_t shared_bytes() const;
  /// A CTA per task, but no more than `ctas_per_sm` for each multiprocessor: the grid-stride loop
  /// of the kernel takes the remaining tasks.
  [[nodiscard]] index_t ctas_for(index_t tasks, index_t ctas_per_sm) const;

 private:
  struct any_kernel {
    char const* name;
    void const* function;
    bool pdl;
  };
  launcher(char const* operation, stream where);
  void launch(any_kernel const& what, grid const& shape, void const* parameters);
  /// Whether the device has programmatic dependent launch.
  [[nodiscard]] bool can_use_pdl() const;

  char const* operation_;
  stream where_;
  device_guard guard_;
};

}  // namespace moe64::cuda
