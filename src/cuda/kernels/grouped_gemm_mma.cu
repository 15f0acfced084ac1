#include "cuda/kernels/grouped_gemm_mma_kernel.cuh"

namespace moe64::cuda {
namespace {

template <class Shape>
mma_shape shape_of(bool quantized, index_t blocks_each) {
  return {Shape::rows, Shape::outs, Shape::threads, Shape::shared_bytes(quantized), blocks_each};
}

}  // namespace

mma_shape grouped_gemm_mma_shape(mma_size size, bool quantized) {
  switch (size) {
    case mma_size::few:
      return shape_of<shape_few>(quantized, 2);
    case mma_size::some:
      return shape_of<shape_some>(quantized, 2);
    default:
      return shape_of<shape_many>(quantized, 1);
  }
}

kernel<grouped_gemm_mma_parameters> grouped_gemm_mma_kernel(mma_size size, mma_variant const& of) {
  switch (size) {
    case mma_size::few:
      return mma_kernel_few(of);
    case mma_size::some:
      return mma_kernel_some(of);
    default:
      return mma_kernel_many(of);
  }
}

}  // namespace moe64::cuda
