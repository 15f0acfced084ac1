#include "cuda/kernels/gemm/sm80/kernel.cuh"

namespace moe64::cuda {

static_assert(shape_thin::outs == mma_thin_outs);

kernel<grouped_gemm_mma_parameters> mma_kernel_thin(mma_variant const& of) {
  return mma_kernel_of<shape_thin, codes_kind::none>("grouped_gemm_mma_thin", of);
}

}  // namespace moe64::cuda
