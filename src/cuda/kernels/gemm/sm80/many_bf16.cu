#include "cuda/kernels/gemm/sm80/kernel.cuh"

namespace moe64::cuda {

kernel<grouped_gemm_mma_parameters> mma_kernel_many_bf16(mma_variant const& of) {
  return mma_kernel_of<bf16_pair, shape_many, shape_many_codes>(of);
}

}  // namespace moe64::cuda
