#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_kernel.cuh"
#include "cuda/kernels/grouped_gemm_wgmma_wide_sums.cuh"

namespace moe64::cuda {

template <class Tile, int Whole, bool Half, bool Rest>
__device__ __forceinline__ void multiply_wide(grouped_gemm_wgmma_parameters const& p,
                                              wide_memory<Tile>& memory, gemm_tile const& tile,
                                              int k_blocks, ring_place<Tile::stages>& at) {
  wide_sums<Tile, Whole, Half, Rest> sums(p, memory, warp_number() / 4 - 1);
#pragma unroll 1
  for (int k = 0; k < k_blocks; ++k, at.next()) sums.add(at);
  sums.end();
  sums.store(tile);
}
/// A tile by the code for its number of blocks.
template <class Tile, bool Rest>
__device__ __forceinline__ void multiply_wide(grouped_gemm_wgmma_parameters const& p,
                                              wide_memory<Tile>& memory, gemm_tile const& tile,
                                              int k_blocks, ring_place<Tile::stages>& at) {
  int const blocks = row_split(tile.rows).blocks;
  if (blocks == 4) return multiply_wide<Tile, 2, false, Rest>(p, memory, tile, k_blocks, at);
  if (blocks == 3) return multiply_wide<Tile, 1, true, Rest>(p, memory, tile, k_blocks, at);
  if (blocks == 2) return multiply_wide<Tile, 1, false, Rest>(p, memory, tile, k_blocks, at);
  if (blocks == 1) return multiply_wide<Tile, 0, true, Rest>(p, memory, tile, k_blocks, at);
  if constexpr (Rest) multiply_wide<Tile, 0, false, true>(p, memory, tile, k_blocks, at);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1) __cluster_dims__(Tile::cluster, 1, 1)
    grouped_gemm_wgmma_wide(__grid_constant__ grouped_gemm_wgmma_parameters const p) {
  // Shared memory begins at a multiple of 1024, as nothing is static: what aligning takes is not there.
  extern __shared__ std::uint8_t shared[];
  auto& memory = *reinterpret_cast<wide_memory<Tile>*>(shared);
  if (threadIdx.x == 0) {
    if (cute::cast_smem_ptr_to_uint(shared) % 1024 != 0) __trap();
    constexpr int multiplying = 8, factors = Tile::numbers::scaled ? 3 : 0;
    memory.stages.make(1 + factors, multiplying * Tile::cluster);
    memory.tiles.make(1, multiplying + factors);
    cutlass::arch::fence_barrier_init();
  }
  index_t const tiles_each = ceil_div(p.n_part, index_t{Tile::cluster * Tile::outs});
  tile_cut const cut = {.expert_begin = p.expert_begin,
                        .capacity = p.y.extent[0],
                        .row_tile = Tile::rows,
                        .out_tiles = p.parts * tiles_each,
                        .more = Tile::rest};
  expert_tiles const tiles(cut, memory.tile_sums);
  cute::cluster_sync();
  constexpr index_t stage_k = Tile::numbers::stage_k;
  int const k_blocks = static_cast<int>(ceil_div(p.k, stage_k));  // narrow-ok: host looked
  gemm_tile tile;
  if (warp_number() < 4) {
    cutlass::arch::warpgroup_reg_dealloc<feeding_registers>();
    if (warp_number() == 0) {
      wide_loader<Tile>(p, tiles, tiles_each, memory).run(k_blocks);
    } else if constexpr (Tile::numbers::scaled) {
      tile_reader reader(memory.tile, memory.tiles);
      wide_factors<Tile> factors(p, memory, k_blocks);
      while (reader.next(tile)) factors.make(tile);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<multiplying_registers>();
    int const group = warp_number() / 4 - 1;
    tile_reader reader(memory.tile, memory.tiles);
    ring_place<Tile::stages> at;
    while (reader.next(tile)) {
      load_output_terms(p, tile, 0, memory.terms[group]);
      if (row_split(tile.rows).rest) {
        multiply_wide<Tile, true>(p, memory, tile, k_blocks, at);
      } else {
        multiply_wide<Tile, false>(p, memory, tile, k_blocks, at);
      }
    }
  }
  // A block's memory must outlive what its pair writes there.
  cute::cluster_sync();
}

template <class Numbers>
constexpr wgmma_shape wide_shape_of = {
    wide_tile<Numbers>::rows, wide_tile<Numbers>::cluster* wide_tile<Numbers>::outs,
    wide_tile<Numbers>::cluster, wide_tile<Numbers>::threads,
    sizeof(wide_memory<wide_tile<Numbers>>)};

}  // namespace moe64::cuda
