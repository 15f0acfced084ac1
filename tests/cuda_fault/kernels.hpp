#pragma once

#include "cuda/runtime/kernel.hpp"
#include "moe64/index.hpp"

/// Kernels with a mistake each, for the tools that must find them. Never part of the library.
namespace moe64::test {

struct fault_parameters {
  int* data;
  index_t elements;
  int* sink;
};

/// Writes one element behind the last one.
[[nodiscard]] cuda::kernel<fault_parameters> writes_out_of_bounds();
/// Reads elements that nobody has written.
[[nodiscard]] cuda::kernel<fault_parameters> reads_what_nobody_wrote();
/// Exchanges numbers through shared memory without a barrier.
[[nodiscard]] cuda::kernel<fault_parameters> races();
/// Writes where no memory is.
[[nodiscard]] cuda::kernel<fault_parameters> writes_nowhere();

}  // namespace moe64::test
