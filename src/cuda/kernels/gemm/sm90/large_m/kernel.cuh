#pragma once

#include "cuda/kernels/gemm/sm90/large_m/scale_producer.cuh"
#include "cuda/kernels/gemm/sm90/large_m/three_warpgroups.cuh"

namespace moe64::cuda {

/// A tile by the code for its number of blocks.
template <class Tile, bool Rest>
__device__ __forceinline__ void multiply_two(consumer_thread<Tile>& thread, gemm_tile const& tile,
                                             int k_blocks) {
  int const blocks = row_blocks(tile.rows).blocks;
  if (blocks == 4)
    return multiply_sums<consumer_accumulators<Tile, 2, false, Rest>>(thread, tile, k_blocks);
  if (blocks == 3)
    return multiply_sums<consumer_accumulators<Tile, 1, true, Rest>>(thread, tile, k_blocks);
  if (blocks == 2)
    return multiply_sums<consumer_accumulators<Tile, 1, false, Rest>>(thread, tile, k_blocks);
  if (blocks == 1)
    return multiply_sums<consumer_accumulators<Tile, 0, true, Rest>>(thread, tile, k_blocks);
  if constexpr (Rest)
    multiply_sums<consumer_accumulators<Tile, 0, false, true>>(thread, tile, k_blocks);
}

template <class Elements>
__device__ __forceinline__ void multiply_tile(consumer_thread<large_m_tile<Elements, 2>>& thread,
                                              gemm_tile const& tile, int k_blocks) {
  using two_groups = large_m_tile<Elements, 2>;
  if (row_blocks(tile.rows).rest) return multiply_two<two_groups, true>(thread, tile, k_blocks);
  multiply_two<two_groups, false>(thread, tile, k_blocks);
}
template <class Elements, bool Hands>
__device__ __forceinline__ void multiply_tile(
    consumer_thread<large_m_tile<Elements, 3, Hands>>& thread, gemm_tile const& tile,
    int k_blocks) {
  multiply_three(thread, tile, k_blocks);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1) __cluster_dims__(Tile::cluster, 1, 1)
    sm90_large_m_gemm(__grid_constant__ sm90_gemm_parameters const p) {
  // Shared memory begins at a multiple of 1024, as nothing is static: what aligning takes is not
  // there.
  extern __shared__ std::uint8_t shared[];
  static_assert(sizeof(large_m_memory<Tile>) <= 227 * 1024);  // what a block of Hopper may have
  auto& memory = *reinterpret_cast<large_m_memory<Tile>*>(shared);
  if (threadIdx.x == 0) {
    if (cute::cast_smem_ptr_to_uint(shared) % 1024 != 0) __trap();
    constexpr int multiplying = 4 * Tile::groups, scaling = Tile::elements::scaled ? 2 : 0;
    memory.stages.make(1, multiplying * Tile::cluster);
    memory.scales.make(Tile::scale_threads, multiplying);
    memory.tiles.make(1, multiplying + scaling + 1);
    cutlass::arch::fence_barrier_init();
  }
  cute::cluster_sync();
  constexpr index_t stage_k = Tile::elements::stage_k;
  int const k_blocks = static_cast<int>(ceil_div(p.k, stage_k));  // narrow-ok: host looked
  if (warp_number() < 4) {
    cutlass::arch::warpgroup_reg_dealloc<Tile::feeding>();
    if (warp_number() == 0) {
      schedule_tiles<Tile>(p, k_blocks, memory);
    } else if (warp_number() == 1) {
      tile_reader reader(memory.tile, memory.tiles);
      operand_producer<Tile> loader(p, memory);
      gemm_tile tile;
      while (reader.next(tile)) {
        // Of an elected lane the compiler knows that it is alone: copies need no loop over lanes.
        if (cute::elect_one_sync() != 0) loader.load(tile, k_blocks);
        __syncwarp();
      }
    } else if constexpr (Tile::elements::scaled) {
      scale_producer<Tile>(p, memory, k_blocks).run();
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<Tile::multiplying>();
    tile_reader reader(memory.tile, memory.tiles);
    consumer_thread<Tile> thread(p, memory);
    for (;; reader.done()) {
      gemm_tile const& tile = reader.await();
      if (tile.expert < 0) break;
      thread.bring_terms(tile);
      multiply_tile(thread, tile, k_blocks);
    }
    if constexpr (Tile::hands) cute::tma_store_wait<0>();  // the memory of y is read until then
  }
  // A block's memory must outlive what its pair writes there.
  cute::cluster_sync();
}

template <class Elements, tile_shape Tile>
kernel<sm90_gemm_parameters> large_m_kernel() {
  return {sm90_kernel_name<Elements, Tile>.text, sm90_large_m_gemm<large_m_tile_of<Elements, Tile>>};
}

}  // namespace moe64::cuda
