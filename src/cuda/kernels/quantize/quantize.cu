#include "cuda/kernels/quantize/quantize.hpp"
#include "cuda/kernels/quantize/reference.cuh"

namespace moe64::cuda {
namespace {

/// The magnitude of element (row, col) of one matrix, as bits.
__device__ std::uint32_t magnitude_at(tensor_view const& x, index_t expert, index_t row,
                                      index_t col) {
  return __float_as_uint(load_number(row_of(x, expert, row), col)) & 0x7fffffffU;
}

/// The global scale with which the largest block scale becomes the largest e4m3.
__device__ float global_for(std::uint32_t largest, bool divides) {
  constexpr float span = 6.0F * 448.0F;
  if (largest == 0) return 1.0F;
  float const value = __uint_as_float(largest);
  float const global = divides ? span / value : value / span;
  return global < __uint_as_float(infinity_bits) && global > 0.0F ? global : 1.0F;
}

/// Computes: the global scale of each matrix from its largest finite magnitude.
/// Grid: a CTA per expert, grid-stride beyond.
/// Threads: any multiple of 32, over the elements of a matrix.
/// Shared memory: a word per warp.
/// Limits: none; any strides and types.
__global__ void quantize_globals(quantize_parameters const p) {
  index_t const rows = count_rows(p.target.live_rows, p.x.extent[1]), cols = p.x.extent[2];
  for (index_t expert = blockIdx.x; expert < p.x.extent[0]; expert += gridDim.x) {
    std::uint32_t largest = 0;
    for (index_t i = threadIdx.x; i < rows * cols; i += blockDim.x) {
      std::uint32_t const size = magnitude_at(p.x, expert, i / cols, i % cols);
      if (size < infinity_bits) largest = max(largest, size);
    }
    largest = largest_of_cta(largest);
    if (threadIdx.x == 0) {
      element<float>(p.target.global, expert) = global_for(largest, p.target.global_divides);
    }
  }
}

/// Computes: the scale of each quantisation block.
/// Grid: a CTA per block, grid-stride beyond.
/// Threads: any multiple of 32, over the elements of a block.
/// Shared memory: a word per warp.
/// Limits: none; any strides and types. Global scales are there (quantize_globals).
__global__ void quantize_scales(quantize_parameters const p) {
  quantize_target const& t = p.target;
  index_t const rows = count_rows(t.live_rows, p.x.extent[1]), cols = p.x.extent[2];
  index_t const grid_rows = ceil_div(rows, t.block_rows), grid_cols = ceil_div(cols, t.block_cols);
  for (index_t task = blockIdx.x; task < p.x.extent[0] * grid_rows * grid_cols; task += gridDim.x) {
    index_t const grid_col = task % grid_cols, grid_row = task / grid_cols % grid_rows;
    index_t const expert = task / grid_cols / grid_rows;
    index_t const row = grid_row * t.block_rows, col = grid_col * t.block_cols;
    index_t const height = min(t.block_rows, rows - row), width = min(t.block_cols, cols - col);
    std::uint32_t largest = 0;
    for (index_t i = threadIdx.x; i < height * width; i += blockDim.x) {
      largest = max(largest, magnitude_at(p.x, expert, row + i / width, col + i % width));
    }
    largest = largest_of_cta(largest);
    if (threadIdx.x != 0) continue;
    auto const global = global_factor::of(t.global, t.global_divides, expert);
    store_scale(t.scales, offset_of(t.scales, expert, grid_row, grid_col),
                scale_for(t.scales.type, largest, t.largest_code, global).code);
  }
}

/// Computes: the codes.
/// Grid: a thread per byte of codes, grid-stride beyond.
/// Threads: any number; a thread makes one code of 8 bits, or two of 4.
/// Shared memory: none.
/// Limits: none; any strides and types. Scales are there (quantize_scales).
__global__ void quantize_codes(quantize_parameters const p) {
  quantize_target const& t = p.target;
  index_t const rows = count_rows(t.live_rows, p.x.extent[1]), cols = p.x.extent[2];
  index_t const per_byte = 8 / bits(t.values.type);
  index_t const across = ceil_div(cols, per_byte);
  index_t const size = p.x.extent[0] * rows * across;
  index_t const step = index_t{gridDim.x} * blockDim.x;
  for (index_t i = index_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    index_t const first = i % across * per_byte, row = i / across % rows;
    index_t const expert = i / across / rows;
    auto const global = global_factor::of(t.global, t.global_divides, expert);
    std::uint32_t codes = 0;
    for (index_t n = 0; n < per_byte && first + n < cols; ++n) {
      float const scale =
          load_scale(t.scales, expert, row / t.block_rows, (first + n) / t.block_cols);
      float const x = load_number(row_of(p.x, expert, row), first + n);
      float const bounded = bounded_quotient(x, global.applied_to(scale), t.largest_code);
      codes |= code_of(t.values.type, bounded) << (4 * n);
    }
    store_codes(t.values, offset_of(t.values, expert, row, first), codes, first + per_byte > cols);
  }
}

}  // namespace

kernel<quantize_parameters> quantize_globals_kernel() {
  return {"quantize_globals", quantize_globals};
}
kernel<quantize_parameters> quantize_scales_kernel() {
  return {"quantize_scales", quantize_scales};
}
kernel<quantize_parameters> quantize_codes_kernel() { return {"quantize_codes", quantize_codes}; }

}  // namespace moe64::cuda
