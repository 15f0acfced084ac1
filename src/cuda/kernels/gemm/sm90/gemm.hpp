#pragma once

#include "cuda/kernels/gemm/parameters.hpp"
#include "cuda/runtime/runtime.hpp"

#include <cstdint>

namespace moe64::cuda {

/// Scales of codes in blocks of 128: scale (place, n, k) belongs to block
/// (n * n_blocks ..., k * k_blocks ...).
struct block_scales {
  void const* data;      ///< null: none, all are 1
  dtype type;            ///< f32 bf16 e8m0
  index_t expert, n, k;  ///< strides in elements; of x: n counts rows
  int n_blocks, k_blocks;
};

/// y = x W^T for sm_90a: weights are the left operand of the tensor cores and rows of x the right
/// one, so that a tile has any multiple of 8 rows, and a row the same bits in each of them.
struct sm90_gemm_parameters {
  tensor_map weights[2];          ///< per part (k, n, place): boxes of 128 bytes x 128 rows, or 96
  tensor_map x[5];                ///< (k, row): boxes of 128 bytes x 8, 16, 32, 64, 128 rows
  tensor_view expert_begin;       ///< [experts + 1] int64
  block_scales weight_scales[2];  ///< per part
  block_scales x_scales;
  int x_scales_at_once;         ///< that can be copied together: 4 or 2 f32 of a row, or 1
  block_scales row_scales[2];   ///< per part, one for each row of weights; others are then none
  part_places expert_place[2];  ///< per part, where the matrices of experts are
  bool poison_invalid;          ///< plain weights with places: no scale says that there is none
  tensor_view bias[2];          ///< per part [experts, n_part] f32 bf16 f16, or absent
  int parts;
  index_t n_part, k;  ///< extents of a part
  tensor_view y;      ///< [capacity, parts * n_part] bf16 f16
  bool y_vectors;     ///< 8 numbers of y can be written at once
  /// Of `whole` and `broad`, where y_vectors: (output of a part, part, row), 64 x 1 x 64.
  tensor_map y_map;
  bool evict_first;     ///< weights are read about once: they need not stay in the cache
  bool operands_ready;  ///< grouped_gemm_args::operands_ready
  /// [work_counter_words] zeros, from which tiles of two groups are taken; null: they are shared
  /// out beforehand, as those of three are.
  std::uint32_t* work_counter;
};
/// A counter in a line of its own, and for each pair of blocks what one of them tells the other.
inline constexpr int most_clusters = 96, work_counter_mailboxes = 32, mailbox_slots = 8;
inline constexpr int work_counter_words = work_counter_mailboxes + most_clusters * mailbox_slots;

/// What the host must know of a tile.
struct gemm_config {
  index_t rows, outs;
  index_t most_rows;  ///< of the last tile of an expert
  index_t cluster;    ///< CTAs that are launched together and have that many tiles
  int threads;        ///< of a CTA
  index_t shared_bytes;
};

/// Tiles of the GEMMs of sm_90a, named by rows x outputs (docs/hopper.md has what each is made of).
/// swap_ab: m32n128, m64n128. large_m: m192n128, m192n128_tma_store and m128n192 (W8A8 alone),
/// m256n128. mixed: m32n128, m64n128, m160n128 (W8A16 alone), m288n128.
enum class tile_shape {
  m32n128,
  m64n128,
  m128n192,
  m160n128,
  m192n128,
  m192n128_tma_store,
  m256n128,
  m288n128,
};
[[nodiscard]] constexpr char const* name(tile_shape tile) {
  constexpr char const* names[] = {"m32n128",  "m64n128",  "m128n192",
                                   "m160n128", "m192n128", "m192n128_tma_store",
                                   "m256n128", "m288n128"};
  return names[static_cast<int>(tile)];  // narrow-ok: a position in names
}

struct sm90_kernel {
  kernel<sm90_gemm_parameters> run;
  gemm_config config;
};
/// `elements`: type of x and weights, e4m3 bf16 f16; a tile of its table in heuristics.hpp.
[[nodiscard]] sm90_kernel sm90_gemm_kernel(tile_shape tile, dtype elements);

}  // namespace moe64::cuda
