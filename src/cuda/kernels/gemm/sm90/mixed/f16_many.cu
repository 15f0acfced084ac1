#include "cuda/kernels/gemm/sm90/mixed/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<sm90_mixed_parameters> w8_m288n128_kernel<f16_register_operand>() {
  return {"grouped_gemm_wgmma_decode_f16_many", sm90_mixed_gemm<w8_m288n128<f16_register_operand>>};
}

}  // namespace moe64::cuda
