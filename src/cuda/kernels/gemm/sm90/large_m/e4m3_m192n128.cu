#include "cuda/kernels/gemm/sm90/large_m/kernel.cuh"

namespace moe64::cuda {

kernel<sm90_gemm_parameters> m192n128_kernel() {
  return {"sm90_w8a8_m192n128", sm90_large_m_gemm<large_m_tile<e4m3_elements, 3>>};
}

}  // namespace moe64::cuda
