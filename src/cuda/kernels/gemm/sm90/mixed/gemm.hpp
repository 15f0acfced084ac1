#pragma once

#include "cuda/kernels/gemm/low_rank.hpp"
#include "cuda/kernels/gemm/sm90/gemm.hpp"

#include <iterator>

namespace moe64::cuda {

/// Scales of 4-bit weights: weight (n, k) has scale (n / outs_per_scale, k / group size). They are
/// read in runs: those of one output for 128 along k.
struct group_scales {
  void const* data;
  dtype type;
  index_t expert, n;  ///< strides in elements; along k they are contiguous
  index_t outs_per_scale;
  int scales_per_run;      ///< 1, 2, 4, 8
  int log2_k16_per_scale;  ///< how many 16s along k of a run share a scale, as a power of two
  int runs_per_scale;      ///< runs along k that share their one scale
  index_t scales_along_k;
  int alignment;          ///< bytes at whose multiples all runs begin: 1, 2, 4
  float const* global;    ///< [experts] f32, or null
  index_t global_expert;  ///< its stride
  bool global_divides;
};
inline constexpr int max_run_bytes = 16;

/// Rows of the boxes in which TMA stores y.
inline constexpr int mixed_store_box_rows[] = {8, 32, 64};

/// What the weights are, and along which dimension they are contiguous: k, or with transposed ones
/// outputs.
enum class mixed_weights { w8, w8_transposed, w4 };

/// y = x W^T for sm_90a where x is bf16 or f16 and W is quantised (W8A16, W4A16): weights are
/// dequantised to the type of x on their way to the tensor cores, with the bits of dequantising
/// first. n counts outputs, k is summed over: of transposed weights those are columns and rows.
struct sm90_mixed_parameters {
  /// Per part (k, n, place): boxes of stage_k codes x the outputs of a tile; transposed
  /// (n, k, place), boxes of the outputs of a tile x stage_k.
  tensor_map weights[2];
  tensor_map x[5];              ///< (k, part, row): boxes of 64 elements x 8, 16, 32, 64, 128 rows
  tensor_view expert_begin;     ///< [experts + 1] int64
  block_scales scales[2];       ///< w8: per part, by n and k
  part_places expert_place[2];  ///< per part, where the matrices of experts are
  bool row_scales;              ///< w8: scales belong to rows of weights, not to blocks
  group_scales groups[2];       ///< w4: per part
  /// w4: what the codes mean. Code i is the f16 whose upper byte is byte i of this; the lower is 0.
  std::uint32_t f16_upper_bytes[4];
  tensor_view bias[2];         ///< per part [experts, n_part] f32 bf16 f16, or absent
  int n_parts, k_parts;        ///< how many parts lie side by side along n and along k; one is 1
  index_t n_part, k_part;      ///< extents of a part
  low_rank_operands low_rank;  ///< the accumulators begin with it
  tensor_map u[5];             ///< of the low-rank term (k, 0, row): boxes as of x
  tensor_view y;               ///< [capacity, n_parts * n_part] bf16 f16
  /// Rows of y begin at multiples of 16 bytes, in each part, so that TMA can store it:
  /// (output, part, row), boxes of 64 outputs x mixed_store_box_rows.
  bool y_by_tma;
  tensor_map y_map[std::size(mixed_store_box_rows)];
  bool evict_first;  ///< weights are read about once: they need not stay in the L2 cache
};

/// What the host must know of a tile.
struct mixed_config {
  gemm_config tile;
  int stage_k;  ///< elements along k of a box of weights
  index_t ctas_per_sm;
};

struct mixed_kernel {
  kernel<sm90_mixed_parameters> run;
  mixed_config config;
};
/// `element`: type of x, bf16 f16; a tile of the table of these weights in heuristics.hpp.
[[nodiscard]] mixed_kernel sm90_mixed_kernel(tile_shape tile, dtype element, mixed_weights weights);

}  // namespace moe64::cuda
