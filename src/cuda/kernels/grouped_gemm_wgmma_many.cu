#include "cuda/kernels/grouped_gemm_wgmma_kernel.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_many() {
  return {"grouped_gemm_wgmma_many", grouped_gemm_wgmma<wgmma_many>};
}

}  // namespace moe64::cuda
