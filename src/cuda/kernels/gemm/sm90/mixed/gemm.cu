#include "cuda/kernels/gemm/sm90/mixed/kernel.cuh"

namespace moe64::cuda {
namespace {

template <class Left>
kernel<sm90_mixed_parameters> kernel_of(tile_shape size, mixed_weights weights) {
  bool const more = size == tile_shape::m160n128, many = more || size == tile_shape::m288n128;
  switch (weights) {
    case mixed_weights::eight_bits:
      if (more) return w8_m160n128_kernel<Left>();
      return many ? w8_m288n128_kernel<Left>() : w8_small_m_kernel<Left>(size);
    case mixed_weights::eight_bits_transposed:
      return many ? w8t_m288n128_kernel<Left>() : w8t_small_m_kernel<Left>(size);
    default:
      return many ? w4_m288n128_kernel<Left>() : w4_small_m_kernel<Left>(size);
  }
}

template <class Few, class Some, class Many, class More = Many>
mixed_config shape_of(tile_shape size) {
  switch (size) {
    case tile_shape::m32n128:
      return mixed_config_of<Few>;
    case tile_shape::m64n128:
      return mixed_config_of<Some>;
    case tile_shape::m160n128:
      return mixed_config_of<More>;
    default:
      return mixed_config_of<Many>;
  }
}

}  // namespace

mixed_config sm90_mixed_config(tile_shape size, mixed_weights weights) {
  using left = bf16_register_operand;  // f16 has the same shapes
  switch (weights) {
    case mixed_weights::eight_bits:
      return shape_of<w8_m32n128<left>, w8_m64n128<left>, w8_m288n128<left>, w8_m160n128<left>>(
          size);
    case mixed_weights::eight_bits_transposed:
      return shape_of<w8t_m32n128<left>, w8t_m64n128<left>, w8t_m288n128<left>>(size);
    default:
      return shape_of<w4_m32n128<left>, w4_m64n128<left>, w4_m288n128<left>>(size);
  }
}

kernel<sm90_mixed_parameters> sm90_mixed_kernel(tile_shape size, dtype numbers,
                                                mixed_weights weights) {
  return numbers == dtype::bf16 ? kernel_of<bf16_register_operand>(size, weights)
                                : kernel_of<f16_register_operand>(size, weights);
}

}  // namespace moe64::cuda
