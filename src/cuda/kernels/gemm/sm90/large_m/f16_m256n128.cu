#include "cuda/kernels/gemm/sm90/large_m/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<sm90_gemm_parameters> m256n128_kernel<f16_elements>() {
  return {"sm90_f16_m256n128", sm90_large_m_gemm<large_m_tile<f16_elements, 2>>};
}

}  // namespace moe64::cuda
