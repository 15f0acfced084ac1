#pragma once

#include "cuda/kernels/gemm/sm90/large_m/epilogue.cuh"
#include "cuda/kernels/gemm/sm90/large_m/m128n192.cuh"
#include "cuda/kernels/gemm/sm90/large_m/m192n128.cuh"
#include "cuda/kernels/gemm/sm90/large_m/producer.cuh"
#include "cuda/kernels/gemm/sm90/large_m/scale_producer.cuh"
#include "cuda/kernels/gemm/sm90/large_m/scheduler.cuh"

#include <cutlass/arch/reg_reconfig.h>

namespace moe64::cuda {

/// By one thread.
template <class Tile>
__device__ void make_barriers(large_m_memory<Tile>& memory) {
  constexpr int consumer_warps = 4 * Tile::warpgroups;
  constexpr int scaling_warps = Tile::elements::scaled ? scale_warps : 0;
  memory.stages.make(1, consumer_warps * Tile::cluster);
  memory.scales.make(scale_threads, consumer_warps);
  memory.tiles.make(1, consumer_warps + scaling_warps + 1);
  cutlass::arch::fence_barrier_init();
}

/// By the producer warpgroup.
template <class Tile>
__device__ __forceinline__ void produce(sm90_gemm_parameters const& p, large_m_memory<Tile>& memory,
                                        int k_stages) {
  constexpr bool row_pairs = Tile::config.cluster == cluster_shares::weights;
  if (warp_number() == scheduler_warp) {
    if constexpr (row_pairs) {
      row_pair_scheduler<Tile>(p, memory).run();
    } else {
      publish_large_m_tiles(p, k_stages, memory);
    }
  } else if (warp_number() == tma_warp) {
    tile_reader reader(memory.tile, memory.tiles);
    std::conditional_t<row_pairs, row_pair_producer<Tile>, large_m_producer<Tile>> producer(p,
                                                                                            memory);
    gemm_tile tile;
    while (reader.next(tile)) {
      // Of an elected lane the compiler knows that it is alone: TMA needs no loop over lanes.
      if (cute::elect_one_sync() != 0) producer.load(tile, k_stages);
      __syncwarp();
    }
  } else if constexpr (Tile::elements::scaled) {
    large_m_scale_producer<Tile>(p, memory, k_stages).run();
  }
}

/// m256n128: each of the two consumer warpgroups has half of the sub-tiles; an odd one and the tail
/// rows they share, 64 outputs each. By the code for the number of sub-tiles.
template <class Tile, bool Tail>
__device__ __forceinline__ void compute_m256n128(large_m_consumer<Tile>& thread,
                                                 gemm_tile const& tile, int k_stages) {
  int const sub_tiles = row_split(tile.rows).sub_tiles;
  if (sub_tiles == 4) return compute_rows<Tile, 2, false, Tail>(thread, tile, k_stages);
  if (sub_tiles == 3) return compute_rows<Tile, 1, true, Tail>(thread, tile, k_stages);
  if (sub_tiles == 2) return compute_rows<Tile, 1, false, Tail>(thread, tile, k_stages);
  if (sub_tiles == 1) return compute_rows<Tile, 0, true, Tail>(thread, tile, k_stages);
  if constexpr (Tail) compute_rows<Tile, 0, false, true>(thread, tile, k_stages);
}

template <class Tile>
__device__ __forceinline__ void compute_m256n128(large_m_consumer<Tile>& thread,
                                                 gemm_tile const& tile, int k_stages) {
  if (row_split(tile.rows).tail) return compute_m256n128<Tile, true>(thread, tile, k_stages);
  compute_m256n128<Tile, false>(thread, tile, k_stages);
}

/// m192n128: each of the three consumer warpgroups has a sub-tile. Of two the third warpgroup has
/// none, one is shared by the first two, 64 outputs each. Tail rows, of tiles of fewer than three
/// sub-tiles, are the third warpgroup's.
template <class Tile>
__device__ __forceinline__ void compute_m192n128(large_m_consumer<Tile>& thread,
                                                 gemm_tile const& tile, int k_blocks) {
  // Shuffled, so that the compiler knows that it is uniform.
  row_split const rows(__shfl_sync(~0U, tile.rows, 0));
  bool const last = thread.warpgroup == 2;
  if (rows.sub_tiles == 3 || (rows.sub_tiles == 2 && !last)) {
    compute_rows<Tile, 1, false, false>(thread, tile, k_blocks);
  } else if (rows.sub_tiles == 1 && !last) {
    compute_rows<Tile, 0, true, false>(thread, tile, k_blocks);
  } else if (rows.tail && last) {
    tail_accumulators<Tile> acc(thread, rows.sub_tiles * sub_tile_rows);
    acc.add(k_blocks);
    acc.finish(tile);
    acc.store(tile);
  } else {
    skip_tile(thread, k_blocks);
  }
}

/// m128n192: each of the two consumer warpgroups has a sub-tile.
template <class Tile>
__device__ __forceinline__ void compute_m128n192(large_m_consumer<Tile>& thread,
                                                 gemm_tile const& tile, int k_blocks) {
  // Shuffled, so that the compiler knows that they are uniform.
  int const rows = __shfl_sync(~0U, tile.rows, 0);
  thread.middle = __shfl_sync(~0U, tile.out / 64 % 2 * Tile::chunk, 0);
  if (rows > thread.warpgroup * sub_tile_rows) {
    compute_rows<Tile, 1, false, false>(thread, tile, k_blocks);
  } else {
    skip_tile(thread, k_blocks);
  }
}

/// What a consumer warpgroup has of a tile, by its accumulators.
template <class Tile>
__device__ __forceinline__ void compute_tile(large_m_consumer<Tile>& thread, gemm_tile const& tile,
                                             int k_stages) {
  if constexpr (Tile::config.cluster == cluster_shares::weights) {
    compute_m128n192(thread, tile, k_stages);
  } else if constexpr (Tile::warpgroups == 3) {
    compute_m192n128(thread, tile, k_stages);
  } else {
    compute_m256n128(thread, tile, k_stages);
  }
}

/// Computes: y = x W^T for all experts, many rows each: x is operand A.
/// Grid: persistent, 2-CTA clusters, at most as many CTAs as SMs; tiles of all experts round-robin,
///   greedy or dynamic.
/// Warp roles: 0 scheduler; 1 TMA loads of weights and x; 2 and 3 scales (W8A8); two or three
///   consumer warpgroups: WGMMA, promotion, epilogue.
/// Shared memory: large_m_memory: a ring of stages (weights, x), a ring of chunks of scales, a ring
///   of tiles, a buffer of y for each consumer warp, row scales and bias.
/// Limits: rows, outputs, k and experts are ints; weights and x as sm90::takes_w8a8 and takes_bf16
///   say.
template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1) __cluster_dims__(Tile::cluster, 1, 1)
    sm90_large_m_gemm(__grid_constant__ sm90_gemm_parameters const p) {
  // Begins at a multiple of 1024, since nothing is static: there is no room to align it.
  extern __shared__ std::uint8_t shared[];
  static_assert(sizeof(large_m_memory<Tile>) <= 227 * 1024);  // what a CTA of sm_90 may have
  auto& memory = *reinterpret_cast<large_m_memory<Tile>*>(shared);
  if (threadIdx.x == first_thread_of(scheduler_warp)) {
    if (cute::cast_smem_ptr_to_uint(shared) % 1024 != 0) __trap();
    make_barriers(memory);
  }
  cute::cluster_sync();
  constexpr index_t stage_k = Tile::elements::stage_k;
  int const k_stages = static_cast<int>(ceil_div(p.k, stage_k));  // narrow-ok: host looked
  if (warp_number() < producer_warps) {
    cutlass::arch::warpgroup_reg_dealloc<Tile::config.producer_registers>();
    produce(p, memory, k_stages);
  } else {
    cutlass::arch::warpgroup_reg_alloc<Tile::config.consumer_registers>();
    tile_reader reader(memory.tile, memory.tiles);
    large_m_consumer<Tile> thread(p, memory);
    for (;; reader.done()) {
      gemm_tile const& tile = reader.await();
      if (tile.expert < 0) break;
      thread.load_terms(tile);
      compute_tile(thread, tile, k_stages);
    }
    if constexpr (Tile::tma_store) cute::tma_store_wait<0>();  // it reads shared memory until then
  }
  // Shared memory must outlive what the other CTA of the cluster multicasts into it.
  cute::cluster_sync();
}

template <class Tile>
kernel<sm90_gemm_parameters> large_m_kernel() {
  return {sm90_kernel_name<Tile>.text, sm90_large_m_gemm<Tile>};
}

}  // namespace moe64::cuda
