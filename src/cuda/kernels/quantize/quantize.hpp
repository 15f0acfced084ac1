#pragma once

#include "cuda/kernels/device/divisor.hpp"
#include "cuda/runtime/kernel.hpp"
#include "moe64/tensor.hpp"

namespace moe64::cuda {

/// Where codes and scales go, as stacks, and what makes them.
struct quantize_target {
  tensor_view values;     ///< [experts, rows, cols] e4m3, e5m2, int8, int4, fp4
  tensor_view scales;     ///< [experts, grid_rows, grid_cols] f32, bf16, f16, e8m0, e4m3
  tensor_view global;     ///< [experts] f32, or absent
  tensor_view live_rows;  ///< [1] int64, or absent
  index_t block_rows;     ///< rows and columns that share a scale
  index_t block_cols;
  float largest_code;
  bool global_divides;
  divisor row_vec16s;  ///< of a row, with gaps that complete its last group
  divisor tiles;       ///< of groups_tile vec16s, that a matrix has
};

/// What the kernels of quantize read and write.
struct quantize_parameters {
  tensor_view x;  ///< [experts, rows, cols] f32, bf16, f16
  quantize_target target;
};

/// The reference, any strides and types, in three launches: the global scales, where there are any;
/// the scales; the codes.
[[nodiscard]] kernel<quantize_parameters> quantize_globals_kernel();
[[nodiscard]] kernel<quantize_parameters> quantize_scales_kernel();
[[nodiscard]] kernel<quantize_parameters> quantize_codes_kernel();

/// Elements that a thread of the kernels named "groups" holds at a time, and threads of their CTAs:
/// few, so that few wait for one another.
inline constexpr int groups_held = 32;
inline constexpr int groups_threads = 64;
inline constexpr index_t groups_tile = index_t{groups_threads} * groups_held / 16;

/// A scale for every 16, 32, 64, 128, 256 or 512 columns of a row, in one pass. vec16 of x and of
/// the codes, as can_take_vec16() says.
[[nodiscard]] kernel<quantize_parameters> quantize_groups_kernel(dtype x, dtype values);

/// Elements of one block that a thread of the kernel below holds, for x of this type.
[[nodiscard]] constexpr int quantize_held(dtype x) { return x == dtype::f32 ? 32 : 64; }

/// Any block that the registers of one CTA hold: block_rows is 1, or block_cols / 16 a power of
/// two. Codes e4m3, e5m2 and int8; vec16 as above.
[[nodiscard]] kernel<quantize_parameters> quantize_blocks_kernel(dtype x, dtype values);

}  // namespace moe64::cuda
