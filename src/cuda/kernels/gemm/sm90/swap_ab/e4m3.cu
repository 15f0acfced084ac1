#include "cuda/kernels/gemm/sm90/swap_ab/kernel.cuh"

namespace moe64::cuda {

template <>
kernel<sm90_gemm_parameters> swap_ab_kernel<e4m3_elements>(tile_shape size) {
  if (size == tile_shape::m32n128) {
    return {"sm90_w8a8_m32n128", sm90_swap_ab_gemm<swap_ab_m32n128<e4m3_elements>>, true};
  }
  return {"sm90_w8a8_m64n128", sm90_swap_ab_gemm<swap_ab_m64n128<e4m3_elements>>, true};
}

}  // namespace moe64::cuda
