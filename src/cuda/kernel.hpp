#pragma once

/// How a kernel is named outside of the files that nvcc compiles.
namespace moe64::cuda {

/// A kernel that takes `Parameters` by value: a name for messages, and its address.
template <class Parameters>
struct kernel {
  char const* name;
  void (*function)(Parameters);
};

}  // namespace moe64::cuda
