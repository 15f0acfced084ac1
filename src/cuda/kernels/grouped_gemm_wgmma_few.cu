#include "cuda/kernels/grouped_gemm_wgmma_kernel.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_few() {
  return {"grouped_gemm_wgmma_few", grouped_gemm_wgmma<wgmma_few>};
}

}  // namespace moe64::cuda
