#pragma once

#include "cuda/kernels/gemm/sm90/static_scheduler.cuh"
#include "cuda/kernels/gemm/sm90/swap_ab/epilogue.cuh"
#include "cuda/kernels/gemm/sm90/swap_ab/producer.cuh"
#include "cuda/kernels/gemm/sm90/swap_ab/scale_producer.cuh"

#include <cutlass/arch/reg_reconfig.h>

namespace moe64::cuda {

/// By one thread.
template <class Tile>
__device__ void make_barriers(swap_ab_memory<Tile>& memory) {
  constexpr int scaling_warps = Tile::elements::scaled ? scale_warps : 0;
  memory.stages.make(1 + scaling_warps, Tile::consumer_warps);
  memory.tiles.make(1, Tile::consumer_warps + scaling_warps + 1);
  cutlass::arch::fence_barrier_init();
}

/// By the warps of the producer warpgroup behind the scheduler.
template <class Tile>
__device__ void produce(sm90_gemm_parameters const& p, swap_ab_memory<Tile>& memory, int k_stages) {
  gemm_tile tile;
  tile_reader reader(memory.tile, memory.tiles);
  if (warp_number() == tma_warp) {
    swap_ab_producer<Tile> producer(p, memory);
    if (!reader.next(tile)) return;
    if (lane_number() == 0) producer.load_first(tile, k_stages);
    __syncwarp();
    while (reader.next(tile)) {
      if (lane_number() == 0) producer.load(tile, k_stages);
      __syncwarp();
    }
  } else if constexpr (Tile::elements::scaled) {
    swap_ab_scale_producer<Tile> producer(p, memory, thread_number() - first_scale_warp * 32);
    while (reader.next(tile)) producer.produce(tile, k_stages);
  }
}

/// Computes: y = x W^T for all experts, few rows each: weights are operand A (swapAB).
/// Grid: persistent, at most a CTA per SM; round-robin over the tiles of all experts. PDL: with
///   operands_ready it loads the weights of its first tile before the kernel before it has ended.
/// Warp roles: 0 scheduler; 1 TMA loads of weights and x; 2 and 3 scale products (W8A8); two
///   consumer warpgroups, 64 outputs each: WGMMA, promotion, epilogue.
/// Shared memory: swap_ab_memory: a ring of stages (weights, x, scale products), a ring of tiles,
///   two buffers of y for each warpgroup, row scales and bias.
/// Limits: rows, outputs, k and experts are ints; weights and x as sm90::takes_w8a8 and takes_bf16
///   say.
template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    sm90_swap_ab_gemm(__grid_constant__ sm90_gemm_parameters const p) {
  extern __shared__ std::uint8_t shared[];
  auto const misaligned = cute::cast_smem_ptr_to_uint(shared) % 1024;
  auto& memory = *reinterpret_cast<swap_ab_memory<Tile>*>(shared + (1024 - misaligned) % 1024);
  if (threadIdx.x == first_thread_of(scheduler_warp)) make_barriers(memory);
  if (threadIdx.x == first_thread_of(tma_warp)) prefetch_maps(p);
  if (!p.operands_ready) pdl_wait();
  index_t const tiles_per_part = ceil_div(p.n_part, index_t{Tile::outs});
  tile_cut const cut = {.expert_begin = p.expert_begin,
                        .capacity = p.y.extent[0],
                        .row_tile = Tile::rows,
                        .out_tiles = p.parts * tiles_per_part,
                        .granule = 8};
  expert_tiles const tiles(cut, memory.tile_sums);
  constexpr index_t stage_k = Tile::elements::stage_k;
  int const k_stages = static_cast<int>(ceil_div(p.k, stage_k));  // narrow-ok: host looked
  // The scheduler and the TMA warp go ahead: the first tile, and its weights.
  if (warp_number() > tma_warp) pdl_wait();
  if (warp_number() < producer_warps) {
    cutlass::arch::warpgroup_reg_dealloc<Tile::config.producer_registers>();
    if (warp_number() == scheduler_warp) {
      publish_tiles(tiles, {tiles_per_part, Tile::outs, Tile::rows, 1, 0}, memory);
    } else {
      produce(p, memory, k_stages);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<Tile::config.consumer_registers>();
    int const warpgroup = warp_number() / 4 - 1;
    tile_reader reader(memory.tile, memory.tiles);
    ring_place<Tile::stages> at;
    gemm_tile tile;
    while (reader.next(tile)) {
      load_output_terms(p, tile, warpgroup * 64, memory.terms[warpgroup]);
      compute_tile(p, memory, tile, k_stages, at);
    }
  }
}

template <class Tile>
kernel<sm90_gemm_parameters> swap_ab_kernel() {
  return {sm90_kernel_name<Tile>.text, sm90_swap_ab_gemm<Tile>, true};
}

}  // namespace moe64::cuda
