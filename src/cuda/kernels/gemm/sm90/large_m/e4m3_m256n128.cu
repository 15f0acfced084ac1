#include "cuda/kernels/gemm/sm90/large_m/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<sm90_gemm_parameters> m256n128_kernel<e4m3_elements>() {
  return {"sm90_w8a8_m256n128", sm90_large_m_gemm<large_m_tile<e4m3_elements, 2>>};
}

}  // namespace moe64::cuda
