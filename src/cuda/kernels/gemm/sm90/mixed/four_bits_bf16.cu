#include "cuda/kernels/gemm/sm90/mixed/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<sm90_mixed_parameters> w4_small_m_kernel<bf16_register_operand>(tile_shape size) {
  if (size == tile_shape::m32n128) {
    return {"grouped_gemm_wgmma_decode_four_bits_bf16_few",
            sm90_mixed_gemm<w4_m32n128<bf16_register_operand>>};
  }
  return {"grouped_gemm_wgmma_decode_four_bits_bf16_some",
          sm90_mixed_gemm<w4_m64n128<bf16_register_operand>>};
}

}  // namespace moe64::cuda
