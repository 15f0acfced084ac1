#pragma once

#include "cuda/kernels/gemm/expert_tiles.cuh"
#include "cuda/kernels/gemm/sm90/epilogue.cuh"
#include "cuda/kernels/gemm/sm90/tile_config.hpp"
#include "cuda/kernels/gemm/sm90/tile_ring.cuh"
#include "cuda/kernels/gemm/sm90/warp_roles.cuh"
#include "cuda/kernels/gemm/sm90/wgmma.cuh"

/// SwapAB tiles, for few rows per expert: operand A are weights, 64 outputs for each of two
/// consumer warpgroups, operand B are rows of x. So a tile has any multiple of 8 rows as N, up to
/// Config.rows, and few rows cost few products.
namespace moe64::cuda {

template <class Elements, gemm_tile_config Config>
struct swap_ab_tile {
  static_assert(Config.a == operand_a::weights && Config.ctas() == 1);
  static_assert(Config.consumer_warpgroups == 2 && Config.outs == 128 && Config.tail_rows == 0);
  static_assert(Config.y == y_store::by_threads);
  static_assert(Config.stage_k == Elements::stage_k && Config.fits_registers());

  using elements = Elements;
  static constexpr gemm_tile_config config = Config;
  static constexpr int rows = Config.rows, outs = Config.outs, stages = Config.stages;
  static constexpr int threads = Config.threads(), consumer_warps = 4 * Config.consumer_warpgroups;
  static constexpr int weight_bytes = outs * 128, stage_bytes = weight_bytes + rows * 128;
  /// Products of x and weight scales, by row: a thread of a consumer uses every fourth pair of
  /// rows, which lie together.
  static constexpr int factor_stride = (rows / 4 + 3) / 4 * 4 + 4;
  static constexpr int factors = Elements::scaled ? 4 * factor_stride : 4;
  /// Where the factor of row r is.
  [[nodiscard]] static __device__ int factor_place(int r) {
    return r % 8 / 2 * factor_stride + r / 8 * 2 + r % 2;
  }
  /// Rows of y that a warpgroup stages at a time, of 64 outputs.
  static constexpr int y_rows = rows < 32 ? 16 : 32, y_bytes = y_rows * 128;
};

template <class Tile>
struct swap_ab_memory {
  alignas(1024) std::uint8_t stage[Tile::stages][Tile::stage_bytes];  ///< weights, then x
  alignas(16) float factor[Tile::stages][Tile::factors];
  alignas(16) std::uint8_t y[2][2][Tile::y_bytes];  ///< two buffers for each warpgroup
  output_terms<64> terms[2];
  gemm_tile tile[tile_slots];
  ring_barriers<Tile::stages> stages;
  ring_barriers<tile_slots> tiles;
  expert_tiles::memory tile_sums;
};
/// With what aligning it takes.
template <class Tile>
inline constexpr index_t swap_ab_shared_bytes = sizeof(swap_ab_memory<Tile>) + 1024;

/// Instantiated in files of its own (instances.cmake).
template <class Tile>
[[nodiscard]] kernel<sm90_gemm_parameters> swap_ab_kernel();

}  // namespace moe64::cuda
