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

inline constexpr int gather_threads = 256;

/// One block per row at a time, element by element; any strides and types.
[[nodiscard]] kernel<gather_parameters> gather_reference_kernel();

/// Rows that are whole vectors of 16 bytes: one thread per token and vector reads it once for all
/// of the token's rows.
[[nodiscard]] kernel<gather_parameters> gather_vectors_kernel();
/// The same times the slot's weight; `type` f32, bf16 or f16, in whole eights.
[[nodiscard]] kernel<gather_parameters> gather_weighted_kernel(dtype type);

}  // namespace moe64::cuda
