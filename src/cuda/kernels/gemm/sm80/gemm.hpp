#pragma once

#include "cuda/kernels/gemm/parameters.hpp"

#include <cstdint>

namespace moe64::cuda {

/// The tensor-core kernels see weights as numbers (n, k): n counts outputs, k is summed over. So a
/// stack and its transpose are the same thing with other strides.
struct mma_weights {
  std::uint8_t const* values;
  index_t expert_bytes;
  index_t line_bytes;                      ///< along n when k is contiguous, along k when n is
  void const* scales;                      ///< null: plain
  index_t scale_expert, scale_n, scale_k;  ///< strides in elements
  float const* global;                     ///< null: none
  index_t global_expert;
  part_places at;
};

/// scaling * u V^T, by which sums begin.
struct low_rank_operands {
  std::uint16_t const* u;  ///< null: none
  index_t u_row, u_col;    ///< strides in elements
  index_t rank;
  void const* weights[2];  ///< per part of n
  index_t expert[2], n[2], k[2];
  bool f32;  ///< weights; otherwise they have the type of x
  float scaling;
};

/// The grid of scales over (n, k) as one stage sees it: scales_n x scales_k of them.
struct mma_scale_grid {
  dtype type;
  bool global_divides;
  int scales_n, scales_k;
  int log_scales_n;          ///< scales_n is a power of two
  int shift_n, shift_k;      ///< log2 of the numbers that share a scale within a stage
  index_t stages_per_scale;  ///< stages along k that share a scale, when scales_k is 1
  index_t tiles_per_scale;   ///< tiles along n that share a scale, when scales_n is 1
  index_t limit_n, limit_k;  ///< extents of the grid of a part
};

struct grouped_gemm_mma_parameters {
  tensor_view expert_begin;  ///< [experts + 1] int64
  std::uint8_t const* x;     ///< [capacity, k_parts * k_part] bf16 or f16
  index_t x_row_bytes;
  mma_weights weights[2];  ///< per part
  bool placed;             ///< a part has a table of places
  int n_parts, k_parts;    ///< how many parts lie side by side along n and along k; one is 1
  index_t n_part, k_part;  ///< extents of a part
  dtype code;              ///< of quantised weights
  mma_scale_grid grid;
  low_rank_operands low_rank;
  tensor_view bias[2];  ///< per part of n [experts, n_part] f32 bf16 f16, or absent
  tensor_view y;        ///< [capacity, n_parts * n_part] f32 bf16 f16
};

/// Rows and outputs of a tile, the threads that compute it, and their shared memory.
struct mma_shape {
  index_t rows, outs;
  int threads;
  index_t shared_bytes;
  index_t blocks_each;  ///< blocks that a multiprocessor of sm_90 holds
};

/// What weights are.
enum class codes_kind {
  none,     ///< numbers of the type of x
  even,     ///< codes, each 16 contiguous ones of one scale, whole stages of them along k
  e4m3,     ///< the same, e4m3
  careful,  ///< any codes; always with tiles of 32 rows
};

/// Which of the kernels a call needs.
struct mma_variant {
  bool bf16;  ///< type of x; otherwise f16
  bool deep;  ///< k is contiguous in the weights; otherwise n
  codes_kind codes;
};

/// Rows of a tile: 16, 64, 128 with few outputs, and 128 of plain weights or 256 of codes.
enum class mma_size { few, some, thin, many };
/// Outputs of a tile of the size `thin`, which is for plain weights alone.
inline constexpr index_t mma_thin_outs = 64;
/// Outputs of a tile of codes, whatever its rows.
inline constexpr index_t mma_code_outs = 128;

[[nodiscard]] mma_shape grouped_gemm_mma_shape(mma_size size, codes_kind codes);
[[nodiscard]] kernel<grouped_gemm_mma_parameters> grouped_gemm_mma_kernel(mma_size size,
                                                                          mma_variant const& of);
/// d_weights of bf16 or f16 operands; shape as of plain weights, not `few`.
[[nodiscard]] kernel<grouped_gemm_wgrad_parameters> grouped_gemm_wgrad_mma_kernel(mma_size size,
                                                                                  bool bf16);

}  // namespace moe64::cuda
