#include "cuda/kernels/gemm/sm90/mixed/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<grouped_gemm_decode_parameters> transposed_kernel_many<f16_left>() {
  return {"grouped_gemm_wgmma_decode_transposed_f16_many",
          grouped_gemm_decode<transposed_many<f16_left>>};
}

}  // namespace moe64::cuda
