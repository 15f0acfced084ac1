#pragma once

#include "cuda/kernels/gemm/sm90/gemm.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"

/// grouped_gemm on the tensor cores and the copy engine of sm_90a.
namespace moe64::cuda::wgmma {

[[nodiscard]] support takes(grouped_gemm_args const& args);
void grouped_gemm(grouped_gemm_args const& args, stream where);
/// Of a call that it takes; weights come in boxes of `weight_rows`.
[[nodiscard]] grouped_gemm_wgmma_parameters parameters(grouped_gemm_args const& args, stream where,
                                                       int weight_rows);

}  // namespace moe64::cuda::wgmma
