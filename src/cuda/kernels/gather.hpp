#pragma once

#include "cuda/kernel.hpp"
#include "moe64/routing.hpp"

namespace moe64::cuda {

/// What the kernels of gather read and write: gather_args without what only the door looks at.
struct gather_parameters {
  tensor_view x, scales, rows, row_scales;
  routing_plan plan;
  bool weighted;
};

/// One block per row at a time, element by element; any strides and types.
[[nodiscard]] kernel<gather_parameters> gather_reference_kernel();

}  // namespace moe64::cuda
