#include "cuda/kernels/grouped_gemm_mma_kernel.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_mma_parameters> mma_kernel_some(mma_variant const& of) {
  return of.bf16 ? mma_kernel_of<bf16_pair, shape_some, 2>(of)
                 : mma_kernel_of<f16_pair, shape_some, 2>(of);
}

}  // namespace moe64::cuda
