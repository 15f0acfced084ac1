#pragma once

#include "moe64/error.hpp"
#include "moe64/ops.hpp"

/// Mixed-input grouped_gemm on sm_90a: weights are dequantised on their way to the tensor cores.
namespace moe64::cuda::sm90_mixed {

/// bf16 or f16 by e4m3, transposed too.
[[nodiscard]] support takes_w8a16(grouped_gemm_args const& args);
/// bf16 or f16 by int4, MXFP4 or NVFP4.
[[nodiscard]] support takes_w4a16(grouped_gemm_args const& args);
/// What one of them takes.
void grouped_gemm(grouped_gemm_args const& args, stream where);

}  // namespace moe64::cuda::sm90_mixed
