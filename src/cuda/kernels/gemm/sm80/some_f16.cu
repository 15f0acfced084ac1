#include "cuda/kernels/gemm/sm80/kernel.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_mma_parameters> mma_kernel_some_f16(mma_variant const& of) {
  return mma_kernel_of<f16_pair, shape_some, shape_some>(of);
}

}  // namespace moe64::cuda
