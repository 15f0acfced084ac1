#include "cuda/kernels/device/divide.cuh"
#include "cuda/kernels/device/expert_place.cuh"
#include "cuda/kernels/device/l2_prefetch.cuh"
#include "cuda/kernels/device/scale.cuh"
#include "cuda/kernels/device/vec8.cuh"
#include "cuda/kernels/quantize/dequantize.hpp"

namespace moe64::cuda {
namespace {

/// Computes: out = codes times their scales, rounded; the values of plain weights as they are. NaN
///   for experts without a place.
/// Grid: a thread per element, grid-stride beyond.
/// Threads: any number.
/// Shared memory: none.
/// Limits: none; any strides and types, and tables of places.
__global__ void dequantize_reference(dequantize_parameters const p) {
  index_t const rows = p.out.extent[1], cols = p.out.extent[2];
  index_t const size = p.out.extent[0] * rows * cols;
  index_t const step = index_t{gridDim.x} * blockDim.x;
  for (index_t i = index_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    index_t const col = i % cols, row = i / cols % rows, expert = i / cols / rows;
    float value = not_a_number();
    if (!is_lost(p.expert_place, expert)) {
      value = load_number(row_of(p.values, place_of(p.expert_place.values, expert), row), col);
      if (p.scales.present()) {
        float const scale = load_scale(p.scales, place_of(p.expert_place.scales, expert),
                                       row / p.block_rows, col / p.block_cols);
        value *= global_factor::of(p.global, p.global_divides, expert).applied_to(scale);
      }
    }
    store_float(row_of(p.out, expert, row), col, value);
  }
}

/// A warp takes these many rows, and of each a vec8 per lane, twice: loads and stores of a warp are
/// coalesced.
constexpr int rows_each = 4;
constexpr int runs_each = 2;
constexpr int run_cols = 32 * 8;
static_assert(dequantize_tile_cols == runs_each * run_cols);
static_assert(dequantize_tile_rows == dequantize_threads / 32 * rows_each);

/// Computes: out = codes times their scales, rounded.
/// Grid: a CTA per tile of dequantize_tile_rows x dequantize_tile_cols, grid-stride beyond.
/// Threads: dequantize_threads; a warp has four rows of the tile, a lane two vec8s of each.
/// Shared memory: none. L2 prefetch of the codes (sm_90).
/// Limits: can_take_vec8() of codes and out, columns per scale a multiple of 8, no places.
template <dtype Codes, dtype Out>
__global__ void __launch_bounds__(dequantize_threads)
    dequantize_vectors(dequantize_parameters const p) {
  index_t const rows = p.out.extent[1], cols = p.out.extent[2];
  index_t const tiles_across = ceil_div(cols, dequantize_tile_cols);
  index_t const tiles_down = ceil_div(rows, dequantize_tile_rows);
  index_t const tiles = p.out.extent[0] * tiles_down * tiles_across;
  index_t const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Single tiles are not contiguous in memory, but bands of them are.
  l2_prefetch(p.values.data, p.prefetch_bytes, p.tile_bytes);
  for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    index_t const band = divide(tile, tiles_across);
    index_t const expert = p.out.extent[0] == 1 ? 0 : divide(band, tiles_down);
    index_t const row = (band - expert * tiles_down) * dequantize_tile_rows + warp * rows_each;
    index_t const col = (tile - band * tiles_across) * dequantize_tile_cols + lane * 8;
    auto const* const from = static_cast<std::uint8_t const*>(p.values.data) +
                             (offset_of(p.values, expert, row) + col) * bits(Codes) / 8;
    auto* const to = static_cast<std::uint8_t*>(p.out.data) +
                     (offset_of(p.out, expert, row) + col) * bits(Out) / 8;
    index_t const from_row = p.values.stride[1] * bits(Codes) / 8;
    index_t const to_row = p.out.stride[1] * bits(Out) / 8;
    raw8<Codes> codes[rows_each][runs_each] = {};
#pragma unroll
    for (int r = 0; r < rows_each; ++r) {
#pragma unroll
      for (int n = 0; n < runs_each; ++n) {
        if (row + r < rows && col + n * run_cols < cols) {
          codes[r][n] = load8<Codes>(from + r * from_row + n * run_cols * bits(Codes) / 8);
        }
      }
    }
    // All scales before the first store, which the compiler moves no load across.
    index_t grid_row = divide(row, p.block_rows), rows_left = (grid_row + 1) * p.block_rows - row;
    bool is_next = true;
    index_t grid_cols[runs_each];
#pragma unroll
    for (int n = 0; n < runs_each; ++n) grid_cols[n] = divide(col + n * run_cols, p.block_cols);
    float scales[rows_each][runs_each] = {};
#pragma unroll
    for (int r = 0; r < rows_each; ++r) {
#pragma unroll
      for (int n = 0; n < runs_each; ++n) {
        if (r > 0 && !is_next) {
          scales[r][n] = scales[r - 1][n];
        } else if (row + r < rows && col + n * run_cols < cols) {
          scales[r][n] = load_scale(p.scales, expert, grid_row, grid_cols[n]);
        }
      }
      is_next = --rows_left == 0;
      if (is_next) {
        ++grid_row;
        rows_left = p.block_rows;
      }
    }
    global_factor const global = global_factor::of(p.global, p.global_divides, expert);
#pragma unroll
    for (int n = 0; n < runs_each; ++n) {
#pragma unroll
      for (int r = 0; r < rows_each; ++r) {
        if (row + r >= rows || col + n * run_cols >= cols) continue;
        float const scale = global.applied_to(scales[r][n]);
        float values[8];
        decode8<Codes>(codes[r][n], values);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] *= scale;
        store8<Out>(to + r * to_row + n * run_cols * bits(Out) / 8, encode8<Out>(values));
      }
    }
  }
}

template <dtype Codes>
kernel<dequantize_parameters> vectors_to(dtype out) {
  switch (out) {
    case dtype::bf16:
      return {"dequantize_vectors", dequantize_vectors<Codes, dtype::bf16>};
    case dtype::f16:
      return {"dequantize_vectors", dequantize_vectors<Codes, dtype::f16>};
    default:
      return {"dequantize_vectors", dequantize_vectors<Codes, dtype::f32>};
  }
}

}  // namespace

kernel<dequantize_parameters> dequantize_reference_kernel() {
  return {"dequantize_reference", dequantize_reference};
}

kernel<dequantize_parameters> dequantize_vectors_kernel(dtype values, dtype out) {
  switch (values) {
    case dtype::e5m2:
      return vectors_to<dtype::e5m2>(out);
    case dtype::int8:
      return vectors_to<dtype::int8>(out);
    case dtype::int4:
      return vectors_to<dtype::int4>(out);
    case dtype::fp4:
      return vectors_to<dtype::fp4>(out);
    default:
      return vectors_to<dtype::e4m3>(out);
  }
}

}  // namespace moe64::cuda
