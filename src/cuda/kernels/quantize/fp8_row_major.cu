#include "cuda/kernels/device/fp8_row_major.cuh"
#include "cuda/kernels/device/pdl.cuh"

namespace moe64::cuda {
namespace {

template <dtype X>
struct rows_source {
  static constexpr dtype type = X;
  static constexpr int width = quantize_usual_width;
  using fetched = sixteens<X, width>;
  usual_rows const& x;

  __device__ fetched fetch(std::uint32_t row, std::uint32_t item) const {
    return load_item<X, width>(x, row, item);
  }
  __device__ fetched const& numbers(fetched const& item) const { return item; }
};

template <dtype X>
__global__ void __launch_bounds__(usual_threads) quantize_usual(quantize_usual_parameters const p) {
  begin_early();
  quantize_usual_groups<usual_threads, quantize_usual_held>(rows_source<X>{p.x}, p.to);
}

}  // namespace

kernel<quantize_usual_parameters> quantize_usual_kernel(dtype x) {
  constexpr char const* name = "quantize_usual";
  return {name, x == dtype::bf16 ? quantize_usual<dtype::bf16> : quantize_usual<dtype::f16>, true};
}

}  // namespace moe64::cuda
