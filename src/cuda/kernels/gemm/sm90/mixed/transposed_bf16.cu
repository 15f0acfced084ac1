#include "cuda/kernels/gemm/sm90/mixed/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<grouped_gemm_decode_parameters> transposed_kernel_small<bf16_left>(wgmma_size size) {
  if (size == wgmma_size::few) {
    return {"grouped_gemm_wgmma_decode_transposed_bf16_few",
            grouped_gemm_decode<transposed_few<bf16_left>>};
  }
  return {"grouped_gemm_wgmma_decode_transposed_bf16_some",
          grouped_gemm_decode<transposed_some<bf16_left>>};
}

}  // namespace moe64::cuda
