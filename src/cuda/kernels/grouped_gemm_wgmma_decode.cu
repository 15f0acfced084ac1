#include "cuda/kernels/grouped_gemm_wgmma_decode_kernel.cuh"

namespace moe64::cuda {
namespace {

template <class Left>
kernel<grouped_gemm_decode_parameters> kernel_of(wgmma_size size, bool transposed) {
  bool const many = size == wgmma_size::many;
  if (transposed)
    return many ? transposed_kernel_many<Left>() : transposed_kernel_small<Left>(size);
  return many ? decode_kernel_many<Left>() : decode_kernel_small<Left>(size);
}

template <class Tile>
decode_shape shape_of(bool transposed) {
  return transposed ? decode_shape_of<transposed_tile<Tile>> : decode_shape_of<Tile>;
}

}  // namespace

decode_shape grouped_gemm_decode_shape(wgmma_size size, bool transposed) {
  switch (size) {
    case wgmma_size::few:
      return shape_of<decode_few<bf16_left>>(transposed);
    case wgmma_size::some:
      return shape_of<decode_some<bf16_left>>(transposed);
    default:
      return shape_of<decode_many<bf16_left>>(transposed);
  }
}

kernel<grouped_gemm_decode_parameters> grouped_gemm_decode_kernel(wgmma_size size, dtype numbers,
                                                                  bool transposed) {
  return numbers == dtype::bf16 ? kernel_of<bf16_left>(size, transposed)
                                : kernel_of<f16_left>(size, transposed);
}

}  // namespace moe64::cuda
