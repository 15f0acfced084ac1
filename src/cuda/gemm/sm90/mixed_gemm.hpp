#pragma once

#include "moe64/error.hpp"
#include "moe64/ops.hpp"

/// grouped_gemm of numbers by codes on sm_90a: weights are decoded on their way to the tensor
/// cores.
namespace moe64::cuda::wgmma_decode {

[[nodiscard]] support takes(grouped_gemm_args const& args);
void grouped_gemm(grouped_gemm_args const& args, stream where);

}  // namespace moe64::cuda::wgmma_decode
