#pragma once

#include "cuda/kernels/activate/activate.hpp"
#include "cuda/kernels/quantize/quantize.hpp"

namespace moe64::cuda {

/// What the kernels of an activate with fused quantisation read and write.
struct activate_quantize_parameters {
  activation_spec spec;
  tensor_view gate, up;    ///< [rows, inter] f32, bf16, f16; up absent when not gated
  quantize_target target;  ///< as stacks of one matrix, [1, rows, inter]
};

/// A row per CTA at a time; any strides and types.
[[nodiscard]] kernel<activate_quantize_parameters> activate_quantize_reference_kernel(
    activation kind);

/// Elements of a row that a thread of activate_rows_kernel holds, and the threads of a CTA, at
/// most.
inline constexpr int activate_held = 32;
inline constexpr int activate_rows_threads = 512;

/// From bf16 or f16 to e4m3; else as quantize_groups_kernel, and as quantize_blocks_kernel with a
/// scale per row.
[[nodiscard]] kernel<activate_quantize_parameters> activate_groups_kernel(activation kind,
                                                                          dtype type);
[[nodiscard]] kernel<activate_quantize_parameters> activate_rows_kernel(activation kind,
                                                                        dtype type);

}  // namespace moe64::cuda
