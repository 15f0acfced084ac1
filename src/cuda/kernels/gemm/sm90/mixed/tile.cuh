#pragma once

#include "cuda/kernels/gemm/expert_tiles.cuh"
#include "cuda/kernels/gemm/sm90/mixed/gemm.hpp"
#include "cuda/kernels/gemm/sm90/tile_ring.cuh"
#include "cuda/kernels/gemm/sm90/wgmma_rs.cuh"

/// The tiles of the mixed-input GEMM, all in one list, what follows from each, and its shared
/// memory.
namespace moe64::cuda {

/// The instruction by which a tile multiplies. Operand A are weights, 64 outputs for each of two
/// consumer warpgroups; operand B are rows of x. Both instructions add the products of a k-step
/// alike, so they give the same bits.
enum class mixed_mma {
  mma_sync,  ///< m16n8k16 of single warps, both operands in registers
  wgmma      ///< operand A in registers, operand B in shared memory
};

/// A tile of `rows` rows of x by 128 outputs.
struct mixed_tile_config {
  tile_shape tile;
  mixed_weights weights;
  int rows, stages;
  mixed_mma mma;
  int wgmmas;   ///< along the rows, for each step along k
  int stage_k;  ///< elements along k of a stage
  /// CTAs of a cluster have the same rows and neighbouring outputs; each loads its share of x, by
  /// TMA multicast to all of them.
  int cluster;
  int ctas_per_sm;
};

/// Few rows. WGMMA with operand A in registers takes as long for 8 rows as for 128, mma.sync does
/// not. Of the two CTAs on an SM one dequantises while the other waits.
[[nodiscard]] constexpr mixed_tile_config mma_sync_tile(tile_shape tile, mixed_weights weights,
                                                        int rows, int stages) {
  return {tile, weights, rows, stages, mixed_mma::mma_sync, 1, 128, 1, 2};
}
/// Many rows: a weight is dequantised once for all of them.
[[nodiscard]] constexpr mixed_tile_config wgmma_tile(tile_shape tile, mixed_weights weights,
                                                     int rows, int stages) {
  return {tile, weights, rows, stages, mixed_mma::wgmma, 2, 64, 2, 1};
}

// clang-format off
inline constexpr mixed_tile_config
    w8_m32n128   = mma_sync_tile(tile_shape::m32n128,  mixed_weights::w8,  32, 4),
    w8_m64n128   = mma_sync_tile(tile_shape::m64n128,  mixed_weights::w8,  64, 3),
    w8_m160n128  =    wgmma_tile(tile_shape::m160n128, mixed_weights::w8, 160, 6),
    w8_m288n128  =    wgmma_tile(tile_shape::m288n128, mixed_weights::w8, 288, 4),
    w8t_m32n128  = mma_sync_tile(tile_shape::m32n128,  mixed_weights::w8_transposed,  32, 4),
    w8t_m64n128  = mma_sync_tile(tile_shape::m64n128,  mixed_weights::w8_transposed,  64, 3),
    w8t_m288n128 =    wgmma_tile(tile_shape::m288n128, mixed_weights::w8_transposed, 288, 4),
    w4_m32n128   = mma_sync_tile(tile_shape::m32n128,  mixed_weights::w4,  32, 5),
    w4_m64n128   = mma_sync_tile(tile_shape::m64n128,  mixed_weights::w4,  64, 3),
    w4_m288n128  =    wgmma_tile(tile_shape::m288n128, mixed_weights::w4, 288, 4);
// clang-format on

/// `Element`: the type of x, bf16_register_operand or f16_register_operand.
template <class Element, mixed_tile_config Config>
struct mixed_tile {
  using element = Element;
  static constexpr mixed_tile_config config = Config;
  static constexpr bool w4 = Config.weights == mixed_weights::w4;
  static constexpr bool transposed = Config.weights == mixed_weights::w8_transposed;
  static constexpr bool wgmma = Config.mma == mixed_mma::wgmma;

  static constexpr int consumer_warpgroups = 2;
  static constexpr int threads = 128 * (consumer_warpgroups + 1);
  static constexpr int outs = 64 * consumer_warpgroups;
  static constexpr int rows = Config.rows, stages = Config.stages, stage_k = Config.stage_k;
  static constexpr int cluster = Config.cluster, wgmmas = Config.wgmmas;

  /// A stage is multiplied in panels of 64 along k (128 bytes of x), a panel in steps of 16.
  static constexpr int panel_k = 64, panels = stage_k / panel_k, steps = panel_k / 16;
  static constexpr int code_bits = w4 ? 4 : 8;
  static constexpr int line_bytes = stage_k * code_bits / 8;  ///< codes of an output
  static constexpr int weight_bytes = outs * line_bytes, panel_bytes = rows * 128;
  static constexpr int stage_bytes = weight_bytes + panels * panel_bytes;
  /// Of each 16 outputs a thread has two, so far apart: transposed codes come in pairs of outputs.
  static constexpr int out_step = transposed ? 1 : 8;

  /// Scales come in chunks. w8: those of 128 quantisation blocks along k, or of 128 outputs that
  /// have one each; transposed: one for each of 128 along k; w4: those of 128 along k,
  /// [group][output], which are so many that two warps load them.
  static constexpr int chunk_scales = w4 ? 8 * 128 : 128;
  static constexpr int scale_slots = transposed || w4 ? 4 : 2;
  static constexpr int scale_warps = w4 ? 2 : 1;
  /// A warp of its own loads the factor V of a low-rank term during the tile before.
  static constexpr bool low_rank_ahead = wgmma && scale_warps == 1;

  /// y is staged in memory of the warpgroup's own, that many rows of it; the rest in the
  /// warpgroup's share of the tile's last stage, once all consumers have multiplied it.
  static constexpr int own_y_rows = rows <= 32 ? rows : rows / 2;
  static constexpr int stage_share = stage_bytes / consumer_warpgroups;
  static_assert(stage_share % 1024 == 0 && (rows - own_y_rows) * 128 <= stage_share);
  static_assert(rows % (8 * wgmmas) == 0 && rows / 8 / cluster < 32);
  static_assert(stage_k == 64 || stage_k == 128);
};

/// Defined in kernel.cuh, instantiated in files of their own (instances.cmake).
template <class Element, mixed_tile_config Config>
[[nodiscard]] kernel<sm90_mixed_parameters> mixed_kernel_of();

/// Quantisation blocks along k of a chunk of scales.
inline constexpr int scale_chunk = 128;
/// The factor V comes 16 along k at a time.
inline constexpr int low_rank_step = 16, low_rank_slots = 1;

template <class Tile>
struct mixed_memory {
  alignas(1024) std::uint8_t stage[Tile::stages][Tile::stage_bytes];
  alignas(1024) std::uint8_t y[Tile::consumer_warpgroups][Tile::own_y_rows * 128];
  float scale[Tile::scale_slots][Tile::chunk_scales];
  float low_rank[low_rank_slots][low_rank_step][Tile::low_rank_ahead ? Tile::outs : 1];
  /// Where weights and scales of a tile are, by part of k; a copy for each of the producers that
  /// use it, which have no registers for it.
  int matrix[2], scale_place[2];
  gemm_tile tile[tile_slots];
  ring_barriers<Tile::stages> stages;
  ring_barriers<Tile::scale_slots> scales;
  ring_barriers<low_rank_slots> low_ranks;
  ring_barriers<tile_slots> tiles;
  shared_barrier last_multiplied;  ///< the last stage of a tile, by all consumer warps
  expert_tiles::memory tile_sums;
};

}  // namespace moe64::cuda
