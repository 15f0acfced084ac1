#include "cuda/kernels/gemm/sm80/kernel.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_mma_parameters> mma_kernel_few(mma_variant const& of) {
  return of.bf16 ? mma_kernel_of<bf16_pair, shape_few, shape_few>(of)
                 : mma_kernel_of<f16_pair, shape_few, shape_few>(of);
}

}  // namespace moe64::cuda
