#include "cuda/kernels/gemm/sm90/mixed/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<sm90_mixed_parameters> w8t_m288n128_kernel<bf16_register_operand>() {
  return {"grouped_gemm_wgmma_decode_transposed_bf16_many",
          sm90_mixed_gemm<w8t_m288n128<bf16_register_operand>>};
}

}  // namespace moe64::cuda
