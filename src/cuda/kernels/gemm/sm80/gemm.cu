#include "cuda/kernels/gemm/sm80/kernel.cuh"

namespace moe64::cuda {
namespace {

template <class Shape>
mma_shape shape_of(bool quantized) {
  return {Shape::rows, Shape::outs, Shape::threads, Shape::shared_bytes(quantized),
          Shape::blocks_each};
}

}  // namespace

mma_shape grouped_gemm_mma_shape(mma_size size, codes_kind codes) {
  bool const quantized = codes != codes_kind::none;
  if (codes == codes_kind::careful) return shape_of<shape_careful>(quantized);
  switch (size) {
    case mma_size::few:
      return shape_of<shape_few>(quantized);
    case mma_size::some:
      return shape_of<shape_some>(quantized);
    case mma_size::thin:
      return shape_of<shape_thin>(quantized);
    default:
      return quantized ? shape_of<shape_many_codes>(quantized) : shape_of<shape_many>(quantized);
  }
}

kernel<grouped_gemm_mma_parameters> grouped_gemm_mma_kernel(mma_size size, mma_variant const& of) {
  if (of.codes == codes_kind::careful) return mma_kernel_careful(of);
  switch (size) {
    case mma_size::few:
      return mma_kernel_few(of);
    case mma_size::some:
      return of.bf16 ? mma_kernel_some_bf16(of) : mma_kernel_some_f16(of);
    case mma_size::thin:
      return mma_kernel_thin(of);
    default:
      return of.bf16 ? mma_kernel_many_bf16(of) : mma_kernel_many_f16(of);
  }
}

}  // namespace moe64::cuda
