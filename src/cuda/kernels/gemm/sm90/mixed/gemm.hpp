#pragma once

#include "cuda/kernels/gemm/sm80/gemm.hpp"
#include "cuda/kernels/gemm/sm90/gemm.hpp"

#include <iterator>

namespace moe64::cuda {

/// Scales of groups along k: of the weights at (n, k) scale (n / n_each, k / group). They are read
/// in runs, each of which serves 128 along k of one output.
struct group_scales {
  void const* data;
  dtype type;
  index_t expert, n;      ///< strides in elements; along k they are contiguous
  index_t n_each;         ///< outputs that share a scale
  int per_run;            ///< scales of a run: 1, 2, 4, 8
  int log_steps;          ///< log2 of how many 16s along k of a run share a scale
  int runs_each;          ///< runs along k that share their one scale
  index_t limit;          ///< scales along k
  int unit;               ///< bytes at whose multiples all runs begin: 1, 2, 4
  float const* global;    ///< [experts] f32, or null
  index_t global_expert;  ///< its stride
  bool global_divides;
};
/// Bytes of a run at most.
inline constexpr int most_run_bytes = 16;

/// Rows of y that the copy engine may write at a time.
inline constexpr int mixed_store_box_rows[] = {8, 32, 64};

/// y = x W^T for sm_90a where x are numbers and weights are codes, which become numbers of the type
/// of x on their way to the tensor cores: the bits are those of decoded weights. n counts outputs,
/// k is summed over: with transposed weights those are their columns and rows.
struct sm90_mixed_parameters {
  /// Per part (k, n, place): boxes of stage_k codes x a tile's outputs; transposed (n, k, place),
  /// boxes of a tile's outputs x stage_k.
  tensor_map weights[2];
  tensor_map x[5];              ///< (k, part, row): boxes of 64 numbers x 8, 16, 32, 64, 128 rows
  tensor_view expert_begin;     ///< [experts + 1] int64
  block_scales scales[2];       ///< per part, by n and k; of codes of 8 bits
  part_places expert_place[2];  ///< per part, where the matrices of experts are
  bool row_scales;              ///< they belong to rows of weights, not to blocks
  group_scales groups[2];       ///< per part; of codes of 4 bits
  /// What codes of 4 bits mean: code i is the f16 whose upper byte is byte i, and whose lower is 0.
  std::uint32_t four_bits[4];
  tensor_view bias[2];         ///< per part [experts, n_part] f32 bf16 f16, or absent
  int n_parts, k_parts;        ///< how many parts lie side by side along n and along k; one is 1
  index_t n_part, k_part;      ///< extents of a part
  low_rank_operands low_rank;  ///< by which sums begin
  tensor_map u[5];             ///< of it (k, 0, row): boxes as of x
  tensor_view y;               ///< [capacity, n_parts * n_part] bf16 f16
  /// Rows of y begin at multiples of 16 bytes, in each part. Then the copy engine writes it:
  /// (output, part, row), boxes of 64 outputs x mixed_store_box_rows.
  bool y_vectors;
  tensor_map y_map[std::size(mixed_store_box_rows)];
  bool evict_first;  ///< weights are read about once: they need not stay in the cache
};

struct mixed_config {
  gemm_config tile;
  int stage_k;          ///< codes along k of a box of weights
  index_t blocks_each;  ///< blocks of threads that a multiprocessor holds
};

/// Which of the kernels a call needs.
enum class mixed_weights { eight_bits, eight_bits_transposed, four_bits };

[[nodiscard]] mixed_config sm90_mixed_config(tile_shape size, mixed_weights weights);
/// `numbers`: type of x, bf16 f16.
[[nodiscard]] kernel<sm90_mixed_parameters> sm90_mixed_kernel(tile_shape size, dtype numbers,
                                                              mixed_weights weights);

}  // namespace moe64::cuda
