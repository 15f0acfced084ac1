#pragma once

/// How a kernel is named outside of the files that nvcc compiles.
namespace moe64::cuda {

/// A kernel that takes `Parameters` by value: a name for messages, and its address.
template <class Parameters>
struct kernel {
  char const* name;
  void (*function)(Parameters);
  /// Its blocks may begin before the kernel that was queued last has ended: they call
  /// pdl_wait() (kernels/early.cuh) before they read what others wrote, and before they write.
  bool early = false;
};

}  // namespace moe64::cuda
