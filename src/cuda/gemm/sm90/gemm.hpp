#pragma once

#include "cuda/kernels/gemm/sm90/gemm.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"

/// grouped_gemm of operands of one type by WGMMA and TMA of sm_90a.
namespace moe64::cuda::sm90 {

/// e4m3 by e4m3, each product of 128 along k promoted to f32 and scaled.
[[nodiscard]] support takes_w8a8(grouped_gemm_args const& args);
void w8a8_gemm(grouped_gemm_args const& args, stream where);
/// bf16 by bf16, f16 by f16.
[[nodiscard]] support takes_bf16(grouped_gemm_args const& args);
void bf16_gemm(grouped_gemm_args const& args, stream where);

/// Of a call that one of them takes; weights come in TMA boxes of `weight_box_rows`.
[[nodiscard]] sm90_gemm_parameters parameters(grouped_gemm_args const& args, stream where,
                                              int weight_box_rows);

}  // namespace moe64::cuda::sm90
