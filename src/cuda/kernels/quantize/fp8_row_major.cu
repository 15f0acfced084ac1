#include "cuda/kernels/device/fp8_row_major.cuh"
#include "cuda/kernels/device/pdl.cuh"

namespace moe64::cuda {
namespace {

template <dtype X>
struct rows_source {
  static constexpr dtype type = X;
  static constexpr int width = quantize_row_major_width;
  using fetched = sixteens<X, width>;
  row_major_rows const& x;

  __device__ fetched fetch(std::uint32_t row, std::uint32_t item) const {
    return load_item<X, width>(x, row, item);
  }
  __device__ fetched const& numbers(fetched const& item) const { return item; }
};

template <dtype X>
__global__ void __launch_bounds__(row_major_threads)
    quantize_row_major(quantize_row_major_parameters const p) {
  pdl_begin();
  quantize_row_major_groups<row_major_threads, quantize_row_major_held>(rows_source<X>{p.x}, p.to);
}

}  // namespace

kernel<quantize_row_major_parameters> quantize_row_major_kernel(dtype x) {
  constexpr char const* name = "quantize_row_major";
  return {name, x == dtype::bf16 ? quantize_row_major<dtype::bf16> : quantize_row_major<dtype::f16>,
          true};
}

}  // namespace moe64::cuda
