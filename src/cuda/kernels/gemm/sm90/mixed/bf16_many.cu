#include "cuda/kernels/gemm/sm90/mixed/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<grouped_gemm_decode_parameters> eight_bits_kernel_many<bf16_left>() {
  return {"grouped_gemm_wgmma_decode_bf16_many", grouped_gemm_decode<eight_bits_many<bf16_left>>};
}

}  // namespace moe64::cuda
