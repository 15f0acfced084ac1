#pragma once

#include "cuda/kernels/quantize/quantize.hpp"
#include "moe64/routing.hpp"

namespace moe64::cuda {

/// What the kernels of a gather that quantises read and write.
struct gather_quantize_parameters {
  tensor_view x;  ///< [tokens, hidden] f32, bf16, f16
  routing_plan plan;
  bool weighted;
  quantize_target target;  ///< rows as a stack of one matrix, [1, capacity, hidden]
};

/// A row per block at a time, element by element; any strides and types.
[[nodiscard]] kernel<gather_quantize_parameters> gather_quantize_reference_kernel();

/// Elements that a thread of the kernels below holds.
inline constexpr int gather_held = 32;

/// Each token is read once and, unless weighted, quantised once for all of its rows. Columns
/// and groups as for quantize_groups_kernel, rows of scales as for quantize_blocks_kernel with one
/// block for each token; x is bf16 or f16, rows are e4m3, e5m2 or int8.
[[nodiscard]] kernel<gather_quantize_parameters> gather_groups_kernel(dtype x, dtype values);
[[nodiscard]] kernel<gather_quantize_parameters> gather_rows_kernel(dtype x, dtype values);

}  // namespace moe64::cuda
