#include "cuda/kernels/gemm/sm90/mixed/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<grouped_gemm_decode_parameters> four_bits_kernel_small<bf16_left>(wgmma_size size) {
  if (size == wgmma_size::few) {
    return {"grouped_gemm_wgmma_decode_four_bits_bf16_few",
            grouped_gemm_decode<four_bits_few<bf16_left>>};
  }
  return {"grouped_gemm_wgmma_decode_four_bits_bf16_some",
          grouped_gemm_decode<four_bits_some<bf16_left>>};
}

}  // namespace moe64::cuda
