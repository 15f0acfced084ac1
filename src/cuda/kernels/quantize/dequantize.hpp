#pragma once

#include "cuda/kernels/device/expert_place.hpp"
#include "cuda/runtime/kernel.hpp"
#include "moe64/tensor.hpp"

namespace moe64::cuda {

/// What the kernels of dequantize read and write, as stacks.
struct dequantize_parameters {
  tensor_view values;  ///< [experts, rows, cols], or as many as there are places; any type
  tensor_view scales;  ///< [experts, grid_rows, grid_cols], or absent when values are plain
  tensor_view global;  ///< [experts] f32, or absent
  tensor_view out;     ///< [experts, rows, cols] f32, bf16, f16
  index_t block_rows;  ///< rows and columns that share a scale
  index_t block_cols;
  bool global_divides;
  part_places expert_place = {};  ///< of the reference kernel alone
  index_t prefetch_bytes = 0;     ///< of values, or 0 where they are not contiguous
  index_t tile_bytes = 0;         ///< that a tile reads on average
};

/// An element per thread at a time; any strides and types.
[[nodiscard]] kernel<dequantize_parameters> dequantize_reference_kernel();

/// The tile of a CTA of dequantize_vectors.
inline constexpr index_t dequantize_tile_rows = 32;
inline constexpr index_t dequantize_tile_cols = 512;
inline constexpr int dequantize_threads = 256;

/// vec8 of codes and of values, as can_take_vec8() says; columns per scale are a multiple of 8.
[[nodiscard]] kernel<dequantize_parameters> dequantize_vectors_kernel(dtype values, dtype out);

}  // namespace moe64::cuda
