#pragma once

#include "cuda/kernels/grouped_gemm_wgmma.hpp"

namespace moe64::cuda {

/// y = x W^T for sm_90a where x are numbers and weights are codes, which become numbers of the type
/// of x on their way to the tensor cores: the bits are those of decoded weights.
struct grouped_gemm_decode_parameters {
  tensor_map weights[2];     ///< per part (k, n, expert): boxes of stage_k codes x a tile's outputs
  tensor_map x[5];           ///< (k, row): boxes of 64 numbers x 8, 16, 32, 64, 128 rows
  tensor_view expert_begin;  ///< [experts + 1] int64
  wgmma_scales scales[2];    ///< per part
  bool row_scales;           ///< they belong to rows of weights, not to blocks
  tensor_view bias[2];       ///< per part [experts, n_part] f32 bf16 f16, or absent
  int parts;
  index_t n_part, k;  ///< extents of a part
  tensor_view y;      ///< [capacity, parts * n_part] bf16 f16
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

[[nodiscard]] decode_shape grouped_gemm_decode_shape(wgmma_size size);
/// `numbers`: type of x, bf16 f16.
[[nodiscard]] kernel<grouped_gemm_decode_parameters> grouped_gemm_decode_kernel(wgmma_size size,
                                                                                dtype numbers);

}  // namespace moe64::cuda
