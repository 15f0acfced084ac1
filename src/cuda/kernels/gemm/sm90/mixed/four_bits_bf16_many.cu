#include "cuda/kernels/gemm/sm90/mixed/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<grouped_gemm_decode_parameters> four_bits_kernel_many<bf16_left>() {
  return {"grouped_gemm_wgmma_decode_four_bits_bf16_many",
          grouped_gemm_decode<four_bits_many<bf16_left>>};
}

}  // namespace moe64::cuda
