#pragma once

#include "cuda/kernels/gemm/sm90/swap_ab/accumulators.cuh"

#include <cutlass/arch/reg_reconfig.h>

namespace moe64::cuda {

/// Registers of a thread that feeds and of one that multiplies: together no more than the 168 of
/// each that a block of 384 threads begins with.
inline constexpr int producer_registers = 40, consumer_registers = 232;
static_assert(producer_registers + 2 * consumer_registers <= 3 * 168);

/// A tile by the code for its number of eights.
template <class Tile, int Rows = 8>
__device__ __forceinline__ void multiply_tile(sm90_gemm_parameters const& p,
                                              swap_ab_memory<Tile>& memory, gemm_tile const& tile,
                                              int k_blocks, ring_place<Tile::stages>& at) {
  if constexpr (Rows < Tile::rows) {
    if (tile.rows > Rows) return multiply_tile<Tile, Rows + 8>(p, memory, tile, k_blocks, at);
  }
  swap_ab_accumulators<Tile, Rows> sums(p, memory, warp_number() / 4 - 1);
#pragma unroll 1
  for (int k = 0; k < k_blocks; ++k, at.next()) sums.add(at);
  sums.end();
  sums.store(tile);
}
inline constexpr int loading_warp = 1;

/// Warps 1 to 3 of those that feed; warp 0 publishes tiles.
template <class Tile>
__device__ void feed(sm90_gemm_parameters const& p, swap_ab_memory<Tile>& memory, int k_blocks) {
  gemm_tile tile;
  tile_reader reader(memory.tile, memory.tiles);
  if (warp_number() == loading_warp) {
    swap_ab_operand_producer<Tile> loader(p, memory);
    if (!reader.next(tile)) return;
    if (lane_number() == 0) loader.load_first(tile, k_blocks);
    __syncwarp();
    while (reader.next(tile)) {
      if (lane_number() == 0) loader.load(tile, k_blocks);
      __syncwarp();
    }
  } else if constexpr (Tile::elements::scaled) {
    swap_ab_scale_producer<Tile> maker(p, memory, thread_number() - 64);
    while (reader.next(tile)) maker.make(tile, k_blocks);
  }
}

/// By one thread: the first copies would wait for them.
__device__ inline void prefetch_maps(sm90_gemm_parameters const& p) {
  auto const prefetch = [](tensor_map const& map) {
    cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&map));
  };
  prefetch(p.weights[0]);
  if (p.parts > 1) prefetch(p.weights[1]);
  prefetch(p.x[0]);
}

/// By one thread.
template <class Tile>
__device__ void make_barriers(swap_ab_memory<Tile>& memory) {
  constexpr int multiplying_warps = 8, factor_warps = Tile::elements::scaled ? 2 : 0;
  memory.stages.make(1 + factor_warps, multiplying_warps);
  memory.tiles.make(1, multiplying_warps + factor_warps + 1);
  cutlass::arch::fence_barrier_init();
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    sm90_swap_ab_gemm(__grid_constant__ sm90_gemm_parameters const p) {
  extern __shared__ std::uint8_t shared[];
  auto const misaligned = cute::cast_smem_ptr_to_uint(shared) % 1024;
  auto& memory = *reinterpret_cast<swap_ab_memory<Tile>*>(shared + (1024 - misaligned) % 1024);
  if (threadIdx.x == 0) make_barriers(memory);
  if (threadIdx.x == 32) prefetch_maps(p);
  if (!p.operands_ready) pdl_wait();
  index_t const tiles_each = ceil_div(p.n_part, index_t{Tile::outs});
  tile_cut const cut = {.expert_begin = p.expert_begin,
                        .capacity = p.y.extent[0],
                        .row_tile = Tile::rows,
                        .out_tiles = p.parts * tiles_each,
                        .granule = 8};
  expert_tiles const tiles(cut, memory.tile_sums);
  constexpr index_t stage_k = Tile::elements::stage_k;
  int const k_blocks = static_cast<int>(ceil_div(p.k, stage_k));  // narrow-ok: host looked
  // Finding the first tile and loading its weights comes before.
  if (warp_number() > loading_warp) pdl_wait();
  if (warp_number() < 4) {
    cutlass::arch::warpgroup_reg_dealloc<producer_registers>();
    if (warp_number() == 0) {
      publish_tiles(tiles, {tiles_each, Tile::outs, Tile::rows, 1, 0}, memory);
    } else {
      feed(p, memory, k_blocks);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<consumer_registers>();
    int const group = warp_number() / 4 - 1;
    tile_reader reader(memory.tile, memory.tiles);
    ring_place<Tile::stages> at;
    gemm_tile tile;
    while (reader.next(tile)) {
      load_output_terms(p, tile, group * 64, memory.terms[group]);
      multiply_tile(p, memory, tile, k_blocks, at);
    }
  }
}

template <class Elements, tile_shape Tile>
kernel<sm90_gemm_parameters> swap_ab_kernel() {
  return {sm90_kernel_name<Elements, Tile>.text, sm90_swap_ab_gemm<swap_ab_tile_of<Elements, Tile>>,
          true};
}

}  // namespace moe64::cuda
