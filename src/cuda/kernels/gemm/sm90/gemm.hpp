#pragma once

#include "cuda/kernels/gemm/parameters.hpp"
#include "cuda/runtime/runtime.hpp"

#include <cstddef>
#include <cstdint>

namespace moe64::cuda {

/// Scales of quantisation blocks: scale (place, n, k) belongs to n_blocks x k_blocks blocks of 128.
struct block_scales {
  void const* data;      ///< null: there are none, all are 1
  dtype type;            ///< f32 bf16 e8m0
  index_t expert, n, k;  ///< strides in elements; of x: n counts rows
  int n_blocks, k_blocks;
};

/// y = x W^T by WGMMA, x and weights of one type: W8A8, or bf16 / f16. A row has the same bits in
/// every tile.
struct sm90_gemm_parameters {
  tensor_map weights[2];          ///< per part (k, n, place): boxes of 128 bytes x weight_box_rows
  tensor_map x[5];                ///< (k, row): boxes of 128 bytes x 8, 16, 32, 64, 128 rows
  tensor_view expert_begin;       ///< [experts + 1] int64
  block_scales weight_scales[2];  ///< per part
  block_scales x_scales;
  int x_scales_per_copy;        ///< of a row by one cp.async: 4 or 2 f32, or 1
  block_scales row_scales[2];   ///< per part, one for each row of weights, instead of weight_scales
  part_places expert_place[2];  ///< per part, where the matrices of experts are
  bool poison_invalid;  ///< plain weights with places: the epilogue makes the NaN of no place
  tensor_view bias[2];  ///< per part [experts, n_part] f32 bf16 f16, or absent
  int parts;
  index_t n_part, k;  ///< extents of a part
  tensor_view y;      ///< [capacity, parts * n_part] bf16 f16
  bool y_vectors;     ///< y can be written 16 bytes at a time
  /// Of tiles with TMA store, where y_vectors: (output of a part, part, row), boxes of y_box_outs x
  /// 1 x y_box_rows.
  tensor_map y_map;
  bool evict_first;     ///< weights are read about once: they need not stay in L2
  bool operands_ready;  ///< grouped_gemm_args::operands_ready
  /// [work_counter_words] zeros for the dynamic schedule of m256n128; null: its schedule is static,
  /// as that of all other tiles.
  std::uint32_t* work_counter;
};
inline constexpr int y_box_outs = 64, y_box_rows = 64;
/// The counter in a cache line of its own, then a mailbox for each cluster.
inline constexpr int most_clusters = 96, work_counter_mailboxes = 32, mailbox_slots = 8;
inline constexpr int work_counter_words = work_counter_mailboxes + most_clusters * mailbox_slots;

/// What a launch needs to know of a tile: of all CTAs of a cluster together.
struct gemm_config {
  index_t rows, outs;
  index_t most_rows;  ///< of the last tile of an expert
  index_t cluster;    ///< CTAs
  int threads;        ///< of a CTA
  index_t shared_bytes;
  int weight_box_rows;  ///< of a TMA box of weights
  bool y_by_tma;        ///< where y_vectors
};

/// Tiles of the GEMMs of sm_90a, named by rows x outputs (docs/hopper.md has what each is made of).
/// fused_layer: m8n128, m16n128. swap_ab: m32n128, m64n128. large_m: m192n128, m192n128_tma_store
/// and m128n192 (W8A8 alone), m256n128. mixed: m32n128, m64n128, m160n128 (W8A16 alone), m288n128.
enum class tile_shape {
  m8n128,
  m16n128,
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
  constexpr char const* names[] = {"m8n128",   "m16n128",  "m32n128",  "m64n128",
                                   "m128n192", "m160n128", "m192n128", "m192n128_tma_store",
                                   "m256n128", "m288n128"};
  return names[static_cast<std::size_t>(tile)];
}

struct sm90_kernel {
  kernel<sm90_gemm_parameters> run;
  gemm_config config;
};
/// `elements`: type of x and weights, e4m3 bf16 f16; a tile of its table in heuristics.hpp.
[[nodiscard]] sm90_kernel sm90_gemm_kernel(tile_shape tile, dtype elements);

}  // namespace moe64::cuda
