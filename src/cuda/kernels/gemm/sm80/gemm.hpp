#pragma once

#include "cuda/kernels/gemm/low_rank.hpp"
#include "cuda/kernels/gemm/parameters.hpp"
#include "cuda/kernels/gemm/sm80/tile_config.hpp"

#include <cstdint>

namespace moe64::cuda {

/// Weights (n, k): n counts outputs, k is summed over. So a stack and its transpose are the same
/// operand with other strides.
struct mma_weight_operand {
  std::uint8_t const* values;
  index_t expert_bytes;
  index_t line_bytes;                      ///< along n when k is contiguous, along k when n is
  void const* scales;                      ///< null: plain
  index_t scale_expert, scale_n, scale_k;  ///< strides in elements
  float const* global;                     ///< null: none
  index_t global_expert;
  part_places expert_place;
};

/// The grid of scales over (n, k) as one stage sees it: scales_n x scales_k of them.
struct mma_scale_grid {
  dtype type;
  bool global_divides;
  int scales_n, scales_k;
  int log2_scales_n;         ///< scales_n is a power of two
  int shift_n, shift_k;      ///< log2 of the elements that share a scale within a stage
  index_t stages_per_scale;  ///< stages along k that share a scale, when scales_k is 1
  index_t tiles_per_scale;   ///< tiles along n that share a scale, when scales_n is 1
  index_t limit_n, limit_k;  ///< extents of the grid of a part
};

struct sm80_gemm_parameters {
  tensor_view expert_begin;  ///< [experts + 1] int64
  std::uint8_t const* x;     ///< [capacity, k_parts * k_part] bf16 or f16
  index_t x_row_bytes;
  mma_weight_operand weights[2];  ///< per part
  bool has_places;                ///< a part has a table of places
  int n_parts, k_parts;           ///< how many parts are adjacent along n and along k; one is 1
  index_t n_part, k_part;         ///< extents of a part
  dtype code;                     ///< of quantised weights
  mma_scale_grid grid;
  low_rank_operands low_rank;
  tensor_view bias[2];  ///< per part of n [experts, n_part] f32 bf16 f16, or absent
  tensor_view y;        ///< [capacity, n_parts * n_part] f32 bf16 f16
};

/// What weights are, and how codes are scaled.
enum class mma_weights {
  plain,              ///< of the type of x
  vec16_scaled,       ///< codes; 16 contiguous ones share a scale, and k is whole stages
  vec16_scaled_e4m3,  ///< the same, e4m3
  element_scaled,     ///< any codes, a scale for each; by m32n128 alone
};
[[nodiscard]] constexpr char const* name(mma_weights weights) {
  constexpr char const* names[] = {"plain", "vec16_scaled", "vec16_scaled_e4m3", "element_scaled"};
  return names[static_cast<int>(weights)];  // narrow-ok: an enumerator
}

/// Which of the kernels of a tile a call needs.
struct mma_variant {
  bool bf16;     ///< type of x; otherwise f16
  bool k_major;  ///< k is contiguous in the weights; otherwise n
  mma_weights weights;
};

/// Outputs of all tiles that take codes: what grids of scales are cut by.
inline constexpr index_t mma_code_outs = 128;

/// m128n64 and m128n256 take plain weights alone, m256n128 codes alone.
[[nodiscard]] kernel<sm80_gemm_parameters> sm80_gemm_kernel(mma_tile tile, mma_variant const& of);
/// d_weights of bf16 or f16 operands; m64n128, m128n64 or m128n256.
[[nodiscard]] kernel<grouped_gemm_wgrad_parameters> sm80_wgrad_kernel(mma_tile tile, bool bf16);

/// Defined in kernel.cuh, instantiated by instances.cmake.
template <class Pair, mma_tile Tile, mma_weights Weights>
kernel<sm80_gemm_parameters> mma_kernel(bool k_major);

}  // namespace moe64::cuda
