#pragma once

#include "cuda/kernels/gemm/kernel_name.hpp"
#include "cuda/kernels/gemm/sm90/mixed/epilogue.cuh"
#include "cuda/kernels/gemm/sm90/mixed/low_rank_producer.cuh"
#include "cuda/kernels/gemm/sm90/mixed/producer.cuh"
#include "cuda/kernels/gemm/sm90/mixed/scale_producer.cuh"
#include "cuda/kernels/gemm/sm90/static_scheduler.cuh"
#include "cuda/kernels/gemm/sm90/warp_roles.cuh"

#include <cutlass/arch/reg_reconfig.h>

namespace moe64::cuda {

/// Registers of a producer thread and of a consumer thread: together no more than a CTA begins
/// with, 168 for each of its 384 threads or, where two share an SM, 80.
inline constexpr int mixed_producer_registers = 56;
[[nodiscard]] constexpr int mixed_consumer_registers(int ctas_per_sm) {
  return ctas_per_sm == 1 ? 224 : 88;
}

template <class Tile>
__device__ void run_mixed_producers(sm90_mixed_parameters const& p, mixed_memory<Tile>& memory,
                                    int stages) {
  gemm_tile tile;
  tile_reader reader(memory.tile, memory.tiles);
  if (warp_number() == tma_warp) {
    mixed_operand_producer<Tile> producer(p, memory);
    while (reader.next(tile)) {
      // Of an elected lane the compiler knows that it is alone: TMA needs no loop over lanes.
      if (cute::elect_one_sync() != 0) producer.load(tile, stages);
      __syncwarp();
    }
  } else if (warp_number() < first_scale_warp + Tile::scale_warps) {
    if constexpr (Tile::w4) {
      group_scale_producer<Tile> producer(p, memory, warp_number() - first_scale_warp);
      while (reader.next(tile)) producer.load(tile);
    } else {
      block_scale_producer<Tile> producer(p, memory);
      while (reader.next(tile)) producer.load(tile);
    }
  } else if constexpr (Tile::low_rank_ahead) {
    low_rank_producer<Tile> producer(p, memory);
    while (reader.next(tile)) producer.load(tile);
  }
}

/// One tile with MMAs of up to MaxRows rows.
template <class Tile, int MaxRows>
__device__ __forceinline__ void consume_rows(mixed_consumer<Tile>& thread, gemm_tile const& tile,
                                             int panels, int rows) {
  mixed_accumulators<Tile, MaxRows> accumulators(rows);
  if (thread.p.low_rank.rank > 0) accumulators.begin_with_low_rank(thread, tile);
  accumulators.multiply(thread, panels);
  accumulators.store(thread, tile);
}
template <class Tile>
__device__ __forceinline__ void consume_tile(mixed_consumer<Tile>& thread, gemm_tile const& tile,
                                             int panels) {
  constexpr int max_rows = Tile::rows / Tile::wgmmas;
  int const rows = mma_rows<Tile>(tile);
  if constexpr (Tile::wgmma) {
    consume_rows<Tile, max_rows>(thread, tile, panels, rows);
  } else {
    dispatch_rows<false, max_rows>(
        rows, [&]<int Rows>() { consume_rows<Tile, Rows>(thread, tile, panels, Rows); });
  }
}

/// Computes: y = x W^T for all experts, plus scaling * u V^T, plus bias: x bf16 or f16, W in 8 or 4
///   bits, dequantised to the type of x; weights are operand A.
/// Grid: persistent, CTAs or 2-CTA clusters, as many as fit the SMs; round-robin over the tiles of
///   all experts.
/// Warp roles: 0 scheduler; 1 TMA loads of weights, x and u; 2 scales (W4A16: 2 and 3); 3 in WGMMA
///   tiles of W8A16 the low-rank factor; two consumer warpgroups, 64 outputs each: dequantisation,
///   MMA, epilogue.
/// Shared memory: mixed_memory: rings of stages (weights, x), of chunks of scales, of the low-rank
///   factor and of tiles; buffers of y.
/// Limits: rows, outputs, k, experts and places are ints (takes_call()); the rank is at most 4096;
///   k is a multiple of 16, but of transposed weights.
template <class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::config.ctas_per_sm)
    __cluster_dims__(Tile::cluster, 1, 1)
        sm90_mixed_gemm(__grid_constant__ sm90_mixed_parameters const p) {
  extern __shared__ std::uint8_t shared[];
  auto const misaligned = cute::cast_smem_ptr_to_uint(shared) % 1024;
  auto& memory = *reinterpret_cast<mixed_memory<Tile>*>(shared + (1024 - misaligned) % 1024);
  if (threadIdx.x == first_thread_of(scheduler_warp)) {
    constexpr int consumer_warps = 4 * Tile::consumer_warpgroups;
    memory.stages.make(1, consumer_warps * Tile::cluster);
    memory.scales.make(32 * Tile::scale_warps, consumer_warps);
    memory.low_ranks.make(32, 32 * consumer_warps);
    make_barrier(memory.last_multiplied, consumer_warps);
    memory.tiles.make(1, consumer_warps + 1 + Tile::scale_warps + (Tile::low_rank_ahead ? 1 : 0));
    cutlass::arch::fence_barrier_init();
  }
  index_t const tiles_per_part = ceil_div(p.n_part, index_t{Tile::outs * Tile::cluster});
  tile_cut const cut = {p.expert_begin, p.y.extent[0], Tile::rows, p.n_parts * tiles_per_part,
                        8 * Tile::wgmmas};
  expert_tiles const tiles(cut, memory.tile_sums);
  if constexpr (Tile::cluster > 1) cute::cluster_sync();
  // Whole 128s, so that there is an even number of panels: past the end of k are zeros.
  int const blocks = static_cast<int>(ceil_div(p.k_part, index_t{128}));  // narrow-ok: an int
  int const stages = blocks * (128 / Tile::stage_k);
  if (warp_number() < producer_warps) {
    cutlass::arch::warpgroup_reg_dealloc<mixed_producer_registers>();
    if (warp_number() == scheduler_warp) {
      int const rank = Tile::cluster == 1 ? 0 : rank_in_cluster();
      publish_tiles(tiles, {tiles_per_part, Tile::outs, Tile::rows, Tile::cluster, rank}, memory);
    } else {
      run_mixed_producers(p, memory, stages);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<mixed_consumer_registers(Tile::config.ctas_per_sm)>();
    tile_reader reader(memory.tile, memory.tiles);
    mixed_consumer<Tile> thread(p, memory);
    for (;;) {
      gemm_tile const& tile = reader.await();
      if (tile.expert < 0) break;
      thread.load_bias(tile);
      consume_tile(thread, tile, p.k_parts * stages * Tile::panels);
      reader.done();
    }
    // Shared memory must outlive the TMA stores that read it ...
    cute::tma_store_wait<0>();
  }
  // ... and what the other CTA of the cluster multicasts into it.
  if constexpr (Tile::cluster > 1) cute::cluster_sync();
}

template <class Element, mixed_tile_config Config>
inline constexpr kernel_name mixed_kernel_name = {Config.weights == mixed_weights::w4 ? "sm90_w4a16"
                                                  : Config.weights == mixed_weights::w8_transposed
                                                      ? "sm90_w8a16_transposed"
                                                      : "sm90_w8a16",
                                                  Element::name, name(Config.tile)};

template <class Element, mixed_tile_config Config>
kernel<sm90_mixed_parameters> mixed_kernel_of() {
  return {mixed_kernel_name<Element, Config>.text, sm90_mixed_gemm<mixed_tile<Element, Config>>};
}

}  // namespace moe64::cuda
