#include "cuda/kernels/gemm/sm90/swap_ab/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_small<bf16_numbers>(wgmma_size size) {
  if (size == wgmma_size::few) {
    return {"grouped_gemm_wgmma_bf16_few", grouped_gemm_wgmma<wgmma_few<bf16_numbers>>, true};
  }
  return {"grouped_gemm_wgmma_bf16_some", grouped_gemm_wgmma<wgmma_some<bf16_numbers>>, true};
}

}  // namespace moe64::cuda
