#include "cuda/kernels/gemm/sm90/large_m/m128n192.cuh"

namespace moe64::cuda {

kernel<sm90_gemm_parameters> m128n192_kernel() {
  return {"sm90_w8a8_m128n192", sm90_large_m_gemm<m128n192_tile>};
}

}  // namespace moe64::cuda
