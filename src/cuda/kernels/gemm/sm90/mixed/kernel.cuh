#pragma once

#include "cuda/kernels/gemm/sm90/mixed/scales.cuh"
#include "cuda/kernels/gemm/sm90/mixed/store.cuh"

#include <cutlass/arch/reg_reconfig.h>

namespace moe64::cuda {

/// Registers of a thread that feeds and of one of the two groups that decode: together no more than
/// a block begins with, 168 for each of its 384 threads or, where two share a multiprocessor, 80.
inline constexpr int mixed_producer_registers = 56;
[[nodiscard]] constexpr int mixed_consumer_registers(int blocks_each) {
  return blocks_each == 1 ? 224 : 88;
}

template <class Tile, int Most>
__device__ __forceinline__ void multiply_sums(mixed_consumer<Tile>& thread, gemm_tile const& tile,
                                              int panels, int width) {
  mixed_accumulators<Tile, Most> sums(width);
  if (thread.p.low_rank.rank > 0) sums.add_low_rank(thread, tile);
  sums.add_all(thread, panels);
  sums.store(thread, tile);
}
template <class Tile>
__device__ __forceinline__ void decode_and_multiply(mixed_consumer<Tile>& thread,
                                                    gemm_tile const& tile, int panels) {
  constexpr int most = Tile::rows / Tile::halves;
  int const width = width_of<Tile>(tile);
  if constexpr (Tile::products == mixed_mma::of_groups) {
    multiply_sums<Tile, most>(thread, tile, panels, width);
  } else {
    for_width<false, most>(
        width, [&]<int Width>() { multiply_sums<Tile, Width>(thread, tile, panels, Width); });
  }
}

template <class Tile>
__device__ void feed(sm90_mixed_parameters const& p, mixed_memory<Tile>& memory, int stages) {
  gemm_tile tile;
  tile_reader reader(memory.tile, memory.tiles);
  if (warp_number() == 1) {
    mixed_operand_producer<Tile> loader(p, memory);
    while (reader.next(tile)) {
      // Of an elected lane the compiler knows that it is alone: copies need no loop over lanes.
      if (cute::elect_one_sync() != 0) loader.load(tile, stages);
      __syncwarp();
    }
  } else if (warp_number() < 2 + Tile::scale_warps) {
    if constexpr (Tile::codes::bits == 4) {
      group_scale_producer<Tile> loader(p, memory, warp_number() - 2);
      while (reader.next(tile)) loader.load(tile);
    } else {
      block_scale_producer<Tile> loader(p, memory);
      while (reader.next(tile)) loader.load(tile);
    }
  } else if constexpr (Tile::low_rank_ahead) {
    low_rank_producer<Tile> loader(p, memory);
    while (reader.next(tile)) loader.load(tile);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks_each)
    __cluster_dims__(Tile::cluster, 1, 1)
        sm90_mixed_gemm(__grid_constant__ sm90_mixed_parameters const p) {
  extern __shared__ std::uint8_t shared[];
  auto const misaligned = cute::cast_smem_ptr_to_uint(shared) % 1024;
  auto& memory = *reinterpret_cast<mixed_memory<Tile>*>(shared + (1024 - misaligned) % 1024);
  if (threadIdx.x == 0) {
    constexpr int multiplying_warps = 4 * Tile::groups;
    memory.stages.make(1, multiplying_warps * Tile::cluster);
    memory.scales.make(32 * Tile::scale_warps, multiplying_warps);
    memory.low_ranks.make(32, 32 * multiplying_warps);
    make_barrier(memory.last_multiplied, multiplying_warps);
    memory.tiles.make(1,
                      multiplying_warps + 1 + Tile::scale_warps + (Tile::low_rank_ahead ? 1 : 0));
    cutlass::arch::fence_barrier_init();
  }
  index_t const tiles_each = ceil_div(p.n_part, index_t{Tile::outs * Tile::cluster});
  tile_cut const cut = {p.expert_begin, p.y.extent[0], Tile::rows, p.n_parts * tiles_each,
                        8 * Tile::halves};
  expert_tiles const tiles(cut, memory.tile_sums);
  if constexpr (Tile::cluster > 1) cute::cluster_sync();
  // Whole 128s, so that there is an even number of panels: behind the end of k are zeros.
  int const blocks = static_cast<int>(ceil_div(p.k_part, index_t{128}));  // narrow-ok: an int
  int const stages = blocks * (128 / Tile::stage_k);
  if (warp_number() < 4) {
    cutlass::arch::warpgroup_reg_dealloc<mixed_producer_registers>();
    if (warp_number() == 0) {
      int const rank = Tile::cluster == 1 ? 0 : rank_in_cluster();
      publish_tiles(tiles, {tiles_each, Tile::outs, Tile::rows, Tile::cluster, rank}, memory);
    } else {
      feed(p, memory, stages);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<mixed_consumer_registers(Tile::blocks_each)>();
    tile_reader reader(memory.tile, memory.tiles);
    mixed_consumer<Tile> thread(p, memory);
    for (;;) {
      gemm_tile const& tile = reader.await();
      if (tile.expert < 0) break;
      thread.load_bias(tile);
      decode_and_multiply(thread, tile, p.k_parts * stages * Tile::panels);
      reader.done();
    }
    // What the copy engine still reads must not go away.
    cute::tma_store_wait<0>();
  }
  // A block's memory must outlive what its pair writes there.
  if constexpr (Tile::cluster > 1) cute::cluster_sync();
}

/// Shared memory: beside the memory itself what aligning it takes.
template <class Tile>
constexpr index_t mixed_shared_bytes = sizeof(mixed_memory<Tile>) + 1024;
template <class Tile>
constexpr mixed_config mixed_config_of = {
    {Tile::rows, Tile::outs, Tile::rows, Tile::cluster, Tile::threads, mixed_shared_bytes<Tile>},
    Tile::stage_k,
    Tile::blocks_each};
/// Of the 228 KB of a multiprocessor the system keeps one for each block.
template <class Tile>
constexpr bool fits = (mixed_shared_bytes<Tile> + 1024) * Tile::blocks_each <= 228 * 1024;

template <class Left, class Codes, int Stages>
using mixed_m32n128 = mixed_tile<Left, Codes, 32, 1, 128, Stages, false, mixed_mma::of_warps>;
template <class Left, class Codes, int Stages>
using mixed_m64n128 = mixed_tile<Left, Codes, 64, 1, 128, Stages, false, mixed_mma::of_warps>;
template <class Left, class Codes>
using mixed_m288n128 = mixed_tile<Left, Codes, 288, 2, 64, 4, true, mixed_mma::of_groups>;

template <class Left>
using w8_m32n128 = mixed_m32n128<Left, eight_bit_codes, 4>;
template <class Left>
using w8_m64n128 = mixed_m64n128<Left, eight_bit_codes, 3>;
/// Fewer rows than the large tile, and more stages: here weights are waited for.
template <class Left>
using w8_m160n128 = mixed_tile<Left, eight_bit_codes, 160, 2, 64, 6, true, mixed_mma::of_groups>;
template <class Left>
using w8_m288n128 = mixed_m288n128<Left, eight_bit_codes>;
template <class Left>
using w8t_m32n128 = transposed_tile<w8_m32n128<Left>>;
template <class Left>
using w8t_m64n128 = transposed_tile<w8_m64n128<Left>>;
template <class Left>
using w8t_m288n128 = transposed_tile<w8_m288n128<Left>>;
template <class Left>
using w4_m32n128 = mixed_m32n128<Left, four_bit_codes, 5>;
template <class Left>
using w4_m64n128 = mixed_m64n128<Left, four_bit_codes, 3>;
template <class Left>
using w4_m288n128 = mixed_m288n128<Left, four_bit_codes>;

static_assert(fits<w8_m160n128<bf16_register_operand>> &&
              fits<w8t_m32n128<bf16_register_operand>> &&
              fits<w8t_m64n128<bf16_register_operand>> &&
              fits<w8t_m288n128<bf16_register_operand>> &&
              fits<w4_m32n128<bf16_register_operand>> && fits<w4_m64n128<bf16_register_operand>> &&
              fits<w4_m288n128<bf16_register_operand>>);

/// Instantiated in files for each kind of numbers and weights.
template <class Left>
kernel<sm90_mixed_parameters> w8_small_m_kernel(tile_shape size);
template <class Left>
kernel<sm90_mixed_parameters> w8_m160n128_kernel();
template <class Left>
kernel<sm90_mixed_parameters> w8_m288n128_kernel();
template <class Left>
kernel<sm90_mixed_parameters> w8t_small_m_kernel(tile_shape size);
template <class Left>
kernel<sm90_mixed_parameters> w8t_m288n128_kernel();
template <class Left>
kernel<sm90_mixed_parameters> w4_small_m_kernel(tile_shape size);
template <class Left>
kernel<sm90_mixed_parameters> w4_m288n128_kernel();

}  // namespace moe64::cuda
