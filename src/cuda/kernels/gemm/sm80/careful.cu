#include "cuda/kernels/gemm/sm80/kernel.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_mma_parameters> mma_kernel_careful(mma_variant const& of) {
  return mma_kernel_of<shape_careful, codes_kind::careful>("grouped_gemm_mma_careful", of);
}

}  // namespace moe64::cuda
