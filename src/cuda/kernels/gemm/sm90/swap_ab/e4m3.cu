#include "cuda/kernels/gemm/sm90/swap_ab/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_small<e4m3_numbers>(wgmma_size size) {
  if (size == wgmma_size::few) {
    return {"grouped_gemm_wgmma_e4m3_few", grouped_gemm_wgmma<wgmma_few<e4m3_numbers>>, true};
  }
  return {"grouped_gemm_wgmma_e4m3_some", grouped_gemm_wgmma<wgmma_some<e4m3_numbers>>, true};
}

}  // namespace moe64::cuda
