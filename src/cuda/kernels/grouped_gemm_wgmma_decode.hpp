#pragma once

#include "cuda/kernels/grouped_gemm_mma.hpp"
#include "cuda/kernels/grouped_gemm_wgmma.hpp"

namespace moe64::cuda {

/// y = x W^T for sm_90a where x are numbers and weights are codes, which become numbers of the type
/// of x on their way to the tensor cores: the bits are those of decoded weights. n counts outputs,
/// k is summed over: with transposed weights those are their columns and rows.
struct grouped_gemm_decode_parameters {
  /// Per part (k, n, place): boxes of stage_k codes x a tile's outputs; transposed (n, k, place),
  /// boxes of a tile's outputs x stage_k.
  tensor_map weights[2];
  tensor_map x[5];           ///< (k, part, row): boxes of 64 numbers x 8, 16, 32, 64, 128 rows
  tensor_view expert_begin;  ///< [experts + 1] int64
  wgmma_scales scales[2];    ///< per part, by n and k
  part_places at[2];         ///< per part, where the matrices of experts are
  bool row_scales;           ///< they belong to rows of weights, not to blocks
  tensor_view bias[2];       ///< per part [experts, n_part] f32 bf16 f16, or absent
  int n_parts, k_parts;      ///< how many parts lie side by side along n and along k; one is 1
  index_t n_part, k_part;    ///< extents of a part
  mma_low_rank low_rank;     ///< by which sums begin
  tensor_map u[5];           ///< of it (k, 0, row): boxes as of x
  tensor_view y;             ///< [capacity, n_parts * n_part] bf16 f16
  /// Rows of y begin at multiples of 16 bytes, in each part. Then the copy engine writes it:
  /// (output, part, row), boxes of 64 outputs x 8 or 32 rows.
  bool y_vectors;
  tensor_map y_map[2];
  bool once;  ///< weights are read about once: they need not stay in the cache
};

struct decode_shape {
  wgmma_shape tile;
  int stage_k;  ///< codes along k of a box of weights
};

[[nodiscard]] decode_shape grouped_gemm_decode_shape(wgmma_size size, bool transposed);
/// `numbers`: type of x, bf16 f16.
[[nodiscard]] kernel<grouped_gemm_decode_parameters> grouped_gemm_decode_kernel(wgmma_size size,
                                                                                dtype numbers,
                                                                                bool transposed);

}  // namespace moe64::cuda
