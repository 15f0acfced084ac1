#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_sums.cuh"

#include <cutlass/arch/reg_reconfig.h>

namespace moe64::cuda {

/// Registers of a thread that feeds and of one that multiplies: together what there is.
inline constexpr int feeding_registers = 48, multiplying_registers = 232;

template <class Tile>
struct group_places {
  ring_place<Tile::stages> stage;
  ring_place<Tile::factor_slots> factors;
};

/// A tile of `rows` rows by the code for the next multiple of 8.
template <class Tile, int Rows = 8>
__device__ __forceinline__ void multiply_tile(grouped_gemm_wgmma_parameters const& p,
                                              wgmma_memory<Tile>& memory, gemm_tile const& tile,
                                              int k_blocks, group_places<Tile>& at) {
  if constexpr (Rows < Tile::rows) {
    if (tile.rows > Rows) return multiply_tile<Tile, Rows + 8>(p, memory, tile, k_blocks, at);
  }
  group_sums<Tile, Rows> sums(p, memory, warp_number() / 4 - 1);
#pragma unroll 1
  for (int k = 0; k < k_blocks; ++k) {
    sums.add(at.stage, at.factors);
    at.stage.next();
    at.factors.next();
  }
  sums.store(tile);
}

template <class Tile>
__device__ void feed(grouped_gemm_wgmma_parameters const& p, expert_tiles const& tiles,
                     wgmma_memory<Tile>& memory, int k_blocks) {
  int const warp = warp_number();
  if (warp == 0) return publish_tiles(p, tiles, memory);
  gemm_tile tile;
  tile_reader reader(memory.tile, memory.tiles);
  if (warp == 1) {
    stage_loader<Tile> loader(p, memory);
    while (reader.next(tile)) {
      if (lane_number() == 0) loader.load(tile, k_blocks);
      __syncwarp();
    }
  } else {
    factor_maker<Tile> maker(p, memory, thread_number() - 64);
    while (reader.next(tile)) maker.make(tile, k_blocks);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    grouped_gemm_wgmma(__grid_constant__ grouped_gemm_wgmma_parameters const p) {
  extern __shared__ std::uint8_t shared[];
  auto const misaligned = cute::cast_smem_ptr_to_uint(shared) % 1024;
  auto& memory = *reinterpret_cast<wgmma_memory<Tile>*>(shared + (1024 - misaligned) % 1024);
  constexpr int multiplying_warps = 8, factor_warps = 2, readers = multiplying_warps + 3;
  if (threadIdx.x == 0) {
    memory.stages.make(1, multiplying_warps);
    memory.factors.make(factor_warps, multiplying_warps);
    memory.tiles.make(1, readers);
    cutlass::arch::fence_barrier_init();
  }
  tile_cut const cut = {p.expert_begin, p.y.extent[0], Tile::rows,
                        p.parts * ceil_div(p.n_part, index_t{Tile::outs}), 8};
  expert_tiles const tiles(cut, memory.tile_sums);
  int const k_blocks = static_cast<int>(ceil_div(p.k, index_t{128}));  // narrow-ok: host looked
  if (warp_number() < 4) {
    cutlass::arch::warpgroup_reg_dealloc<feeding_registers>();
    feed(p, tiles, memory, k_blocks);
  } else {
    cutlass::arch::warpgroup_reg_alloc<multiplying_registers>();
    tile_reader reader(memory.tile, memory.tiles);
    group_places<Tile> at;
    gemm_tile tile;
    while (reader.next(tile)) multiply_tile(p, memory, tile, k_blocks, at);
  }
}

template <class Tile>
constexpr wgmma_shape wgmma_shape_of = {Tile::rows, Tile::outs, Tile::threads,
                                        wgmma_shared_bytes<Tile>};

using wgmma_few = wgmma_tile<1, 32, 10>;
using wgmma_some = wgmma_tile<1, 64, 8>;
using wgmma_many = wgmma_tile<2, 128, 4>;

kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_few();
kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_some();
kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_many();

}  // namespace moe64::cuda
