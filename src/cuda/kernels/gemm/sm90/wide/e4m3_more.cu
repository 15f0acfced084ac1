#include "cuda/kernels/gemm/sm90/wide/kernel.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_more() {
  return {"grouped_gemm_wgmma_e4m3_more", grouped_gemm_wgmma_wide<wide_tile<e4m3_numbers, 3>>};
}

}  // namespace moe64::cuda
