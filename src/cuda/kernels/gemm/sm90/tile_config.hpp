#pragma once

#include "cuda/kernels/gemm/kernel_name.hpp"
#include "cuda/kernels/gemm/sm90/gemm.hpp"

/// All tiles of W8A8 and of bf16 / f16, from which the kernels are made. Which of them a call gets
/// is the table in cuda/gemm/sm90/heuristics.cpp.
namespace moe64::cuda {

/// The other one is operand B.
enum class operand_a {
  weights,  ///< swapAB: swap_ab, any multiple of 8 rows
  x         ///< large_m: rows in 64s, and a tail
};

/// What the two CTAs of a cluster have in common: each loads half of it, by TMA multicast to both.
enum class cluster_shares {
  nothing,  ///< there is no cluster
  x,        ///< the same rows, neighbouring outputs
  weights   ///< the same outputs, two row tiles, which may be of two experts
};

/// How the epilogue writes y from shared memory.
enum class y_store { by_threads, by_tma };

struct gemm_tile_config {
  tile_shape tile;
  operand_a a;
  int rows, tail_rows;  ///< M of a CTA, and how many more the last tile of an expert may have
  int outs;             ///< N of a CTA
  int stage_k;          ///< K of a stage: 128 bytes
  int stages;
  int consumer_warpgroups;
  cluster_shares cluster;
  y_store y;
  int producer_registers, consumer_registers;  ///< of a thread; different ones by setmaxnreg

  [[nodiscard]] constexpr int ctas() const { return cluster == cluster_shares::nothing ? 1 : 2; }
  [[nodiscard]] constexpr int threads() const { return (consumer_warpgroups + 1) * 128; }
  [[nodiscard]] constexpr int most_rows() const { return rows + tail_rows; }
  /// Of a TMA box of weights: where they are shared, half of them.
  [[nodiscard]] constexpr int weight_box_rows() const {
    return cluster == cluster_shares::weights ? outs / 2 : outs;
  }
  /// Whether the registers of all warpgroups are no more than the CTA begins with: of the 65,536 of
  /// an SM a multiple of 8 for each thread.
  [[nodiscard]] constexpr bool fits_registers() const {
    return producer_registers + consumer_warpgroups * consumer_registers <=
           (consumer_warpgroups + 1) * (65536 / threads() / 8 * 8);
  }
};

// Stages: what the shared memory of an SM holds. WGMMAs of bf16 and f16 go on while the next stage
// is awaited, which keeps one more stage in use. In W8A8 they end with their stage: m256n128 gains
// nothing by a fourth, and by room for y it does (docs/experiments/sm90-epilogue.md). layer_: of
// fused_layer, whose CTAs have other warps as well and no setmaxnreg.
// clang-format off
inline constexpr gemm_tile_config
    //                         tile                            operand A           rows  tail  outs    k  stages  consumers  cluster                  y                    registers
    w8a8_m32n128            = {tile_shape::m32n128,            operand_a::weights,   32,    0,  128, 128,     10,         2, cluster_shares::nothing, y_store::by_threads,  40, 232},
    w8a8_m64n128            = {tile_shape::m64n128,            operand_a::weights,   64,    0,  128, 128,      8,         2, cluster_shares::nothing, y_store::by_threads,  40, 232},
    w8a8_m192n128           = {tile_shape::m192n128,           operand_a::x,        192,    0,  128, 128,      5,         3, cluster_shares::x,       y_store::by_threads,  40, 152},
    w8a8_m192n128_tma_store = {tile_shape::m192n128_tma_store, operand_a::x,        192,    0,  128, 128,      4,         3, cluster_shares::x,       y_store::by_tma,      40, 152},
    w8a8_m128n192           = {tile_shape::m128n192,           operand_a::x,        128,    0,  192, 128,      4,         2, cluster_shares::weights, y_store::by_tma,      56, 224},
    w8a8_m256n128           = {tile_shape::m256n128,           operand_a::x,        256,   32,  128, 128,      3,         2, cluster_shares::x,       y_store::by_threads,  40, 232},
    layer_m8n128            = {tile_shape::m8n128,             operand_a::weights,    8,    0,  128, 128,     12,         2, cluster_shares::nothing, y_store::by_threads, 128, 128},
    layer_m16n128           = {tile_shape::m16n128,            operand_a::weights,   16,    0,  128, 128,     11,         2, cluster_shares::nothing, y_store::by_threads, 128, 128},
    bf16_m32n128            = {tile_shape::m32n128,            operand_a::weights,   32,    0,  128,  64,     10,         2, cluster_shares::nothing, y_store::by_threads,  40, 232},
    bf16_m64n128            = {tile_shape::m64n128,            operand_a::weights,   64,    0,  128,  64,      8,         2, cluster_shares::nothing, y_store::by_threads,  40, 232},
    bf16_m256n128           = {tile_shape::m256n128,           operand_a::x,        256,   32,  128,  64,      4,         2, cluster_shares::x,       y_store::by_threads,  40, 232};
// clang-format on

/// What a launch needs to know of a tile.
[[nodiscard]] constexpr gemm_config launch_config(gemm_tile_config const& tile,
                                                  index_t shared_bytes) {
  return {.rows = tile.rows * (tile.cluster == cluster_shares::weights ? 2 : 1),
          .outs = tile.outs * (tile.cluster == cluster_shares::x ? 2 : 1),
          .most_rows = tile.most_rows(),
          .cluster = tile.ctas(),
          .threads = tile.threads(),
          .shared_bytes = shared_bytes,
          .weight_box_rows = tile.weight_box_rows(),
          .y_by_tma = tile.y == y_store::by_tma};
}

template <class Tile>
inline constexpr kernel_name sm90_kernel_name = {"sm90", Tile::elements::name,
                                                 name(Tile::config.tile)};

}  // namespace moe64::cuda
