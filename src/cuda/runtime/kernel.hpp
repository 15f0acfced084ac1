#pragma once

/// How a kernel is named outside of the files that nvcc compiles.
namespace moe64::cuda {

/// A kernel that takes `Parameters` by value: a name for messages, and its address.
template <class Parameters>
struct kernel {
  char const* name;
  void (*function)(Parameters);
  /// Launched by programmatic dependent launch: its CTAs may start before the kernel in front of it
  /// in the stream has ended. They call pdl_wait() (kernels/device/pdl.cuh) before they read what
  /// other kernels wrote, and before they write.
  bool pdl = false;
};

}  // namespace moe64::cuda
