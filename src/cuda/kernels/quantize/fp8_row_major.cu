#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/quantize/fp8_row_major.cuh"

namespace moe64::cuda {
namespace {

template <dtype X>
struct rows_source {
  static constexpr dtype type = X;
  static constexpr int width = quantize_row_major_width;
  using fetched = raw_item<X, width>;
  row_major_rows const& x;

  __device__ fetched fetch(std::uint32_t row, std::uint32_t item) const {
    return load_item<X, width>(x, row, item);
  }
  __device__ fetched const& elements(fetched const& item) const { return item; }
};

/// Computes: codes e4m3 and scales f32 of one matrix of bf16 or f16, a scale for every 128 columns.
/// Grid: a CTA for quantize_row_major_held items per thread, grid-stride beyond. PDL.
/// Threads: row_major_threads; 16 columns per thread and item, a group for 8 lanes of a warp.
/// Shared memory: none.
/// Limits: can_be_row_major() and has_row_major_rows(): 31 bits of items, no global scale.
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
