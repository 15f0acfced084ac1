#pragma once

#include "cuda/kernels/device/expert_place.hpp"
#include "cuda/runtime/kernel.hpp"
#include "moe64/tensor.hpp"

namespace moe64::cuda {

/// What the kernels of dequantize read and write: everything as stacks.
struct dequantize_parameters {
  tensor_view values;  ///< [experts, rows, cols], or as many as there are places; any number
  tensor_view scales;  ///< [experts, grid_rows, grid_cols], or absent when values are plain
  tensor_view global;  ///< [experts] f32, or absent
  tensor_view out;     ///< [experts, rows, cols] f32, bf16, f16
  index_t block_rows;  ///< rows and columns that share a scale
  index_t block_cols;
  bool global_divides;
  part_places at = {};      ///< the reference kernel alone looks there
  index_t ahead_bytes = 0;  ///< of values to read ahead, or 0 where they do not lie in one piece
  index_t ahead_each = 0;   ///< as many as a tile reads on average
};

/// One number per thread at a time; any strides and types.
[[nodiscard]] kernel<dequantize_parameters> dequantize_reference_kernel();

/// Rows and columns that a block of dequantize_vectors takes at a time.
inline constexpr index_t dequantize_tile_rows = 32;
inline constexpr index_t dequantize_tile_cols = 512;
inline constexpr int dequantize_threads = 256;

/// Eight numbers per thread at a time. Columns must be adjacent, their number and that of columns
/// per scale multiples of 8, and eight codes and eight numbers aligned to their size (at most 16).
[[nodiscard]] kernel<dequantize_parameters> dequantize_vectors_kernel(dtype values, dtype out);

}  // namespace moe64::cuda
