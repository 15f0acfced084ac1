#pragma once

#include "cuda/kernels/quantize/quantize.hpp"
#include "moe64/routing.hpp"

namespace moe64::cuda {

/// What the kernels of a gather with fused quantisation read and write.
struct gather_quantize_parameters {
  tensor_view x;  ///< [tokens, hidden] f32, bf16, f16
  routing_plan plan;
  bool weighted;
  quantize_target target;  ///< rows as a stack of one matrix, [1, capacity, hidden]
};

/// A row per CTA at a time; any strides and types.
[[nodiscard]] kernel<gather_quantize_parameters> gather_quantize_reference_kernel();

/// Elements that a thread of the kernels below holds.
inline constexpr int gather_held = 32;

/// Each token is read once and, unless weighted, quantised once for all of its rows, from bf16 or
/// f16 to e4m3, e5m2 or int8: a scale per group as quantize_groups_kernel, or per row.
[[nodiscard]] kernel<gather_quantize_parameters> gather_groups_kernel(dtype x, dtype values);
[[nodiscard]] kernel<gather_quantize_parameters> gather_rows_kernel(dtype x, dtype values);

}  // namespace moe64::cuda
