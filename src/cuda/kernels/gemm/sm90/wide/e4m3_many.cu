#include "cuda/kernels/gemm/sm90/wide/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_many<e4m3_numbers>() {
  return {"grouped_gemm_wgmma_e4m3_many", grouped_gemm_wgmma_wide<wide_tile<e4m3_numbers, 2>>};
}

}  // namespace moe64::cuda
