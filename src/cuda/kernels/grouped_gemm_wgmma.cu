#include "cuda/kernels/grouped_gemm_wgmma_wide_kernel.cuh"

namespace moe64::cuda {
namespace {

template <class Numbers>
kernel<grouped_gemm_wgmma_parameters> kernel_of(wgmma_size size) {
  return size == wgmma_size::many ? wgmma_kernel_many<Numbers>()
                                  : wgmma_kernel_small<Numbers>(size);
}

template <class Numbers>
wgmma_shape shape_of(wgmma_size size) {
  switch (size) {
    case wgmma_size::few:
      return wgmma_shape_of<wgmma_few<Numbers>>;
    case wgmma_size::some:
      return wgmma_shape_of<wgmma_some<Numbers>>;
    default:
      return wide_shape_of<wide_tile<Numbers, 2>>;
  }
}

}  // namespace

wgmma_shape grouped_gemm_wgmma_shape(wgmma_size size, dtype numbers) {
  if (size == wgmma_size::more) return wide_shape_of<wide_tile<e4m3_numbers, 3>>;
  if (numbers == dtype::bf16) return shape_of<bf16_numbers>(size);
  if (numbers == dtype::f16) return shape_of<f16_numbers>(size);
  return shape_of<e4m3_numbers>(size);
}

kernel<grouped_gemm_wgmma_parameters> grouped_gemm_wgmma_kernel(wgmma_size size, dtype numbers) {
  if (size == wgmma_size::more) return wgmma_kernel_more();
  if (numbers == dtype::bf16) return kernel_of<bf16_numbers>(size);
  if (numbers == dtype::f16) return kernel_of<f16_numbers>(size);
  return kernel_of<e4m3_numbers>(size);
}

}  // namespace moe64::cuda
