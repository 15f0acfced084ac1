#pragma once

#include "cuda/kernels/gemm/sm90/epilogue.cuh"
#include "cuda/kernels/gemm/sm90/tile_config.hpp"
#include "cuda/kernels/gemm/sm90/tile_ring.cuh"
#include "cuda/kernels/gemm/sm90/warp_roles.cuh"
#include "cuda/kernels/gemm/sm90/wgmma.cuh"

/// Large-M tiles, for many rows per expert: operand A are sub-tiles of 64 rows of x, so that a
/// thread has two rows of each and needs two scales for each k-block. By swapAB it would need one
/// for every fourth pair of rows of the tile, and those loads take the shared-memory bandwidth
/// through which the tensor cores get their operands. Tail rows are operand B, as in swap_ab.
namespace moe64::cuda {

inline constexpr int sub_tile_rows = 64, max_tail_rows = 32;

/// How the rows of a tile are multiplied.
struct row_split {
  int sub_tiles;
  bool tail;  ///< up to max_tail_rows behind them

  __device__ explicit row_split(int rows)
      : sub_tiles(rows / sub_tile_rows), tail(rows % sub_tile_rows != 0) {
    if (rows % sub_tile_rows <= max_tail_rows) return;
    ++sub_tiles;
    tail = false;
  }
  /// Rows that TMA loads.
  [[nodiscard]] __device__ int loaded() const {
    return sub_tiles * sub_tile_rows + (tail ? max_tail_rows : 0);
  }
};

template <class Elements, gemm_tile_config Config>
struct large_m_tile {
  static_assert(Config.a == operand_a::x && Config.ctas() == 2);
  static_assert(Config.stage_k == Elements::stage_k && Config.fits_registers());
  static_assert(Config.tail_rows == 0 || Config.tail_rows == max_tail_rows);

  using elements = Elements;
  static constexpr gemm_tile_config config = Config;
  static constexpr int rows = Config.rows, most_rows = Config.most_rows(), outs = Config.outs;
  static constexpr int stages = Config.stages, cluster = Config.ctas();
  static constexpr int threads = Config.threads(), warpgroups = Config.consumer_warpgroups;
  static constexpr bool tma_store = Config.y == y_store::by_tma;
  static constexpr int weight_bytes = outs * 128, stage_bytes = weight_bytes + most_rows * 128;

  /// Scales come in chunks of four k-blocks: 16 bytes of a row.
  static constexpr int chunk = 4, chunks = 2;
  static constexpr int scaled_rows = Elements::scaled ? most_rows : 1;
  /// Quantisation blocks along the outputs.
  static constexpr int out_blocks = (outs + 127) / 128;

  /// y is staged by warps: 16 rows of a sub-tile, 64 outputs, which are a cache line, at a time. By
  /// threads y_rows of these rows are stored at a time; by TMA a whole sub-tile by 64 outputs,
  /// which lie together, tma_box_bytes.
  static constexpr int warp_rows = 16, y_cols = 64, y_rows = warpgroups == 2 ? 16 : 8;
  static_assert(y_cols == y_box_outs && sub_tile_rows == y_box_rows);
  static constexpr int tma_box_bytes = sub_tile_rows * y_cols * 2;
  static constexpr int y_bytes = tma_store ? warp_rows * outs * 2 : y_rows * y_cols * 2;
};

template <class Tile>
struct large_m_memory {
  alignas(1024) std::uint8_t stage[Tile::stages][Tile::stage_bytes];  ///< weights, then x
  alignas(16) float row_scale[Tile::chunks][Tile::scaled_rows][Tile::chunk];
  float out_scale[Tile::chunks][Tile::out_blocks * Tile::chunk];
  alignas(Tile::tma_store ? 1024 : 16) std::uint8_t y[4 * Tile::warpgroups][Tile::y_bytes];
  output_terms<Tile::outs> terms;
  gemm_tile tile[tile_slots];
  ring_barriers<Tile::stages> stages;
  ring_barriers<tile_slots> tiles;
  ring_barriers<Tile::chunks> scales;
};

/// Instantiated in files of its own (instances.cmake).
template <class Tile>
[[nodiscard]] kernel<sm90_gemm_parameters> large_m_kernel();

}  // namespace moe64::cuda
