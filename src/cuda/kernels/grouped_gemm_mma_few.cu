#include "cuda/kernels/grouped_gemm_mma_kernel.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_mma_parameters> mma_kernel_few(mma_variant const& of) {
  return mma_kernel_of<shape_few, shape_few>(of);
}

}  // namespace moe64::cuda
