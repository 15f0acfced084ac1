#include "cuda/kernels/gemm/sm90/wide/broad.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_broad() {
  return {"grouped_gemm_wgmma_e4m3_broad", grouped_gemm_wgmma_wide<broad_tile>};
}

}  // namespace moe64::cuda
