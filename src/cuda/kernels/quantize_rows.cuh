#pragma once

#include "cuda/kernels/quantize.hpp"
#include "cuda/kernels/quotient.cuh"

#include <type_traits>

/// Quantising in one pass, whatever the numbers come from. A source has the `type` of its numbers
/// and row(expert, row).load(down, col, exists): eight of them as raw8, `down` rows below, zeros
/// where they do not exist. All lanes of a warp load together.
namespace moe64::cuda {

/// Where the eight codes at (expert, row, col) lie.
template <dtype Code>
__device__ inline std::uint8_t* codes_at(tensor_view const& values, index_t expert, index_t row,
                                         index_t col) {
  return static_cast<std::uint8_t*>(values.data) +
         (offset_of(values, expert, row) + col) * bits(Code) / 8;
}

/// A scale for every block_cols = 8 * 2^n <= 256 columns of a row: neighbouring lanes hold one
/// group, and agree on its largest number with shuffles.
template <dtype Code, class Source>
__device__ void quantize_groups_of(Source const& source, quantize_target const& t) {
  constexpr dtype x_type = Source::type;
  constexpr int runs = quantize_tile_cols / 256;
  index_t const rows = count_rows(t.live_rows, t.values.extent[1]), cols = t.values.extent[2];
  index_t const tiles_across = ceil_div(cols, quantize_tile_cols);
  index_t const tiles_down = ceil_div(rows, quantize_tile_rows);
  int const lanes = static_cast<int>(t.block_cols) / 8;  // narrow-ok: at most 32
  index_t const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  index_t const tiles = t.values.extent[0] * tiles_down * tiles_across;
  for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    index_t const first_col = tile % tiles_across * quantize_tile_cols + lane * 8;
    index_t const row = tile / tiles_across % tiles_down * quantize_tile_rows + warp;
    index_t const expert = tile / tiles_across / tiles_down;
    if (row >= rows) continue;
    auto const place = source.row(expert, row);
    raw8<x_type> x[runs];
#pragma unroll
    for (int n = 0; n < runs; ++n) {
      x[n] = place.load(0, first_col + n * 256, first_col + n * 256 < cols);
    }
    std::uint32_t largest[runs];
#pragma unroll
    for (int n = 0; n < runs; ++n) largest[n] = largest_of(x[n]);
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int n = 0; n < runs; ++n) {
        largest[n] = max(largest[n], __shfl_xor_sync(0xffffffffU, largest[n], distance));
      }
    }
    auto const global = global_factor::of(t.global, t.global_divides, expert);
#pragma unroll
    for (int n = 0; n < runs; ++n) {
      index_t const col = first_col + n * 256;
      if (col >= cols) continue;
      stored_scale const scale =
          scale_for(t.scales.type, largest[n], largest_code_of<Code>, global);
      if (lane % lanes == 0) {
        store_scale(t.scales, offset_of(t.scales, expert, row, col / t.block_cols), scale.code);
      }
      store8<Code>(codes_at<Code>(t.values, expert, row, col),
                   codes_of<Code>(x[n], divisor::of(global.applied_to(scale.value))));
    }
  }
}

/// One scale at a time for a block that the threads hold together: eights side by side along a row,
/// block_rows = 1 or 2^n of them.
template <dtype Code, class Source>
__device__ void quantize_blocks_of(Source const& source, quantize_target const& t) {
  constexpr dtype x_type = Source::type;
  constexpr int held = quantize_held(x_type) / 8;
  __shared__ std::uint32_t of_warp[2][32];
  index_t const rows = count_rows(t.live_rows, t.values.extent[1]), cols = t.values.extent[2];
  index_t const grid_rows = ceil_div(rows, t.block_rows), grid_cols = ceil_div(cols, t.block_cols);
  // With one row every eight is of it.
  int const shift = t.block_rows == 1 ? 31 : __ffsll(t.block_cols / 8) - 1;
  index_t const tasks = t.values.extent[0] * grid_rows * grid_cols;
  int parity = 0;
  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x, parity ^= 1) {
    index_t const grid_col = task % grid_cols, grid_row = task / grid_cols % grid_rows;
    index_t const expert = task / grid_cols / grid_rows;
    index_t const row = grid_row * t.block_rows, col = grid_col * t.block_cols;
    index_t const height = min(t.block_rows, rows - row), width = min(t.block_cols, cols - col);
    auto const row_of_eight = [&](int n) { return (threadIdx.x + n * blockDim.x) >> shift; };
    auto const col_of_eight = [&](int n) {
      return 8 * ((threadIdx.x + n * blockDim.x) & ((1U << shift) - 1U));
    };
    auto const place = source.row(expert, row);
    raw8<x_type> x[held];
    std::uint32_t largest = 0;
#pragma unroll
    for (int n = 0; n < held; ++n) {
      bool const exists = row_of_eight(n) < height && col_of_eight(n) < width;
      x[n] = place.load(row_of_eight(n), col + col_of_eight(n), exists);
    }
#pragma unroll
    for (int n = 0; n < held; ++n) largest = max(largest, largest_of(x[n]));
    largest = __reduce_max_sync(0xffffffffU, largest);
    if (threadIdx.x % 32 == 0) of_warp[parity][threadIdx.x / 32] = largest;
    // One barrier per block of scales is enough: what is written next is the other half.
    __syncthreads();
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
      largest = max(largest, of_warp[parity][warp]);
    }
    auto const global = global_factor::of(t.global, t.global_divides, expert);
    stored_scale const scale = scale_for(t.scales.type, largest, largest_code_of<Code>, global);
    if (threadIdx.x == 0) {
      store_scale(t.scales, offset_of(t.scales, expert, grid_row, grid_col), scale.code);
    }
    divisor const by = divisor::of(global.applied_to(scale.value));
#pragma unroll
    for (int n = 0; n < held; ++n) {
      if (row_of_eight(n) >= height || col_of_eight(n) >= width) continue;
      store8<Code>(codes_at<Code>(t.values, expert, row + row_of_eight(n), col + col_of_eight(n)),
                   codes_of<Code>(x[n], by));
    }
  }
}

}  // namespace moe64::cuda
