#include "cuda/kernels/gemm/sm90/wide/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_many<f16_numbers>() {
  return {"grouped_gemm_wgmma_f16_many", grouped_gemm_wgmma_wide<wide_tile<f16_numbers, 2>>};
}

}  // namespace moe64::cuda
