#include "cuda/kernels/grouped_gemm_wgmma_kernel.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_some() {
  return {"grouped_gemm_wgmma_some", grouped_gemm_wgmma<wgmma_some>};
}

}  // namespace moe64::cuda
