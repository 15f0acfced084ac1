#pragma once

#include "cuda/kernels/device/expert_place.hpp"
#include "cuda/runtime/kernel.hpp"
#include "moe64/quant.hpp"

namespace moe64::cuda {

/// A quantized_view for the device.
struct matrix_operand {
  tensor_view values;  ///< [experts, rows, cols], or as many as it has places
  tensor_view scales;  ///< [experts, grid_rows, grid_cols], or absent: plain
  tensor_view global;  ///< [experts] f32, or absent
  index_t rows_per_scale, cols_per_scale;
  bool global_divides;
  part_places expert_place;
};

/// y = x W^T (or x W), plus scaling * u V^T (or u V), plus bias: grouped_gemm_args for the device.
struct grouped_gemm_parameters {
  matrix_operand x;           ///< [1, capacity, depth]
  matrix_operand weights[2];  ///< per part
  int parts;
  bool transpose;
  tensor_view expert_begin;   ///< [experts + 1] int64
  tensor_view bias[2];        ///< per part [experts, part_rows], or absent
  matrix_operand low_rank_x;  ///< [1, capacity, rank], or absent
  matrix_operand low_rank_weights[2];
  int low_rank_parts;
  float low_rank_scaling;
  tensor_view y;  ///< [capacity, outs]
};

/// Any legal call, in f32 in the order of the portable CPU implementations.
[[nodiscard]] kernel<grouped_gemm_parameters> grouped_gemm_reference_kernel();
inline constexpr int gemm_reference_tile = 16;

struct grouped_gemm_wgrad_parameters {
  tensor_view dy;            ///< [capacity, parts * part_rows]
  tensor_view x;             ///< [capacity, cols], or absent
  tensor_view expert_begin;  ///< [experts + 1] int64
  tensor_view d_weights[2];  ///< per part [experts, part_rows, cols], or absent
  tensor_view d_bias[2];     ///< per part [experts, part_rows], or absent
  int parts;
  float scaling;
};

/// d_weights of any legal call, rows added in order.
[[nodiscard]] kernel<grouped_gemm_wgrad_parameters> grouped_gemm_wgrad_reference_kernel();
/// d_bias, rows added in order.
[[nodiscard]] kernel<grouped_gemm_wgrad_parameters> grouped_gemm_bias_gradient_kernel();
inline constexpr index_t bias_gradient_threads = 128;

}  // namespace moe64::cuda
