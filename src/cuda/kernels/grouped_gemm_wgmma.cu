#include "cuda/kernels/grouped_gemm_wgmma_kernel.cuh"

namespace moe64::cuda {

wgmma_shape grouped_gemm_wgmma_shape(wgmma_size size) {
  switch (size) {
    case wgmma_size::few:
      return wgmma_shape_of<wgmma_few>;
    case wgmma_size::some:
      return wgmma_shape_of<wgmma_some>;
    default:
      return wgmma_shape_of<wgmma_many>;
  }
}

kernel<grouped_gemm_wgmma_parameters> grouped_gemm_wgmma_kernel(wgmma_size size) {
  switch (size) {
    case wgmma_size::few:
      return wgmma_kernel_few();
    case wgmma_size::some:
      return wgmma_kernel_some();
    default:
      return wgmma_kernel_many();
  }
}

}  // namespace moe64::cuda
