#include "cuda/kernels/gemm/sm90/mixed/kernel.cuh"

namespace moe64::cuda {
namespace {

template <class Left>
kernel<grouped_gemm_decode_parameters> kernel_of(wgmma_size size, decode_weights weights) {
  bool const more = size == wgmma_size::more, many = more || size == wgmma_size::many;
  switch (weights) {
    case decode_weights::eight_bits:
      if (more) return eight_bits_kernel_more<Left>();
      return many ? eight_bits_kernel_many<Left>() : eight_bits_kernel_small<Left>(size);
    case decode_weights::eight_bits_transposed:
      return many ? transposed_kernel_many<Left>() : transposed_kernel_small<Left>(size);
    default:
      return many ? four_bits_kernel_many<Left>() : four_bits_kernel_small<Left>(size);
  }
}

template <class Few, class Some, class Many, class More = Many>
decode_shape shape_of(wgmma_size size) {
  switch (size) {
    case wgmma_size::few:
      return decode_shape_of<Few>;
    case wgmma_size::some:
      return decode_shape_of<Some>;
    case wgmma_size::more:
      return decode_shape_of<More>;
    default:
      return decode_shape_of<Many>;
  }
}

}  // namespace

decode_shape grouped_gemm_decode_shape(wgmma_size size, decode_weights weights) {
  using left = bf16_left;  // f16 has the same shapes
  switch (weights) {
    case decode_weights::eight_bits:
      return shape_of<eight_bits_few<left>, eight_bits_some<left>, eight_bits_many<left>,
                      eight_bits_more<left>>(size);
    case decode_weights::eight_bits_transposed:
      return shape_of<transposed_few<left>, transposed_some<left>, transposed_many<left>>(size);
    default:
      return shape_of<four_bits_few<left>, four_bits_some<left>, four_bits_many<left>>(size);
  }
}

kernel<grouped_gemm_decode_parameters> grouped_gemm_decode_kernel(wgmma_size size, dtype numbers,
                                                                  decode_weights weights) {
  return numbers == dtype::bf16 ? kernel_of<bf16_left>(size, weights)
                                : kernel_of<f16_left>(size, weights);
}

}  // namespace moe64::cuda
