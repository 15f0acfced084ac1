#include "cuda/kernels/layer_wgmma.cuh"

namespace moe64::cuda {
namespace {

/// By one thread.
template <class Tile>
__device__ void make_layer_barriers(layer_memory<Tile>& memory) {
  constexpr int multiplying_warps = 8, factor_warps = 2;
  memory.of.stages.make(2, multiplying_warps);
  memory.tiles.make(1, multiplying_warps + factor_warps);
  cutlass::arch::fence_barrier_init();
}

template <class Tile, dtype Type>
__global__ void __maxnreg__(128) layer_wgmma_few(__grid_constant__ layer_wgmma_parameters const p) {
  extern __shared__ std::uint8_t shared[];
  auto const misaligned = cute::cast_smem_ptr_to_uint(shared) % 1024;
  auto& memory = *reinterpret_cast<layer_memory<Tile>*>(shared + (1024 - misaligned) % 1024);
  unsigned first_tile = 0;
  if (threadIdx.x == 0) first_tile = atomicAdd(p.counters, 1U);
  if (threadIdx.x == 32) make_layer_barriers(memory);
  if (threadIdx.x >= 64 && threadIdx.x < 66) prefetch_maps(p.product[threadIdx.x - 64]);
  find_units(p.plan, memory);

  auto const k_blocks_of = [&](layer_tile const& tile) {
    index_t const k = p.product[tile.product].k;
    return static_cast<int>(ceil_div(k, index_t{Tile::numbers::stage_k}));  // narrow-ok: host
  };
  int const group = warp_number() / 4 - 1;
  layer_reader<Tile> reader(memory);
  layer_tile tile;
  if (memory.units == 0) {
    await_earlier();
    layer_steps<Tile, Type> const steps(p, memory, group);
    // Of nothing: zeros.
    index_t const width = p.y.extent[1];
    if (group == 0) {
      for (index_t out = blockIdx.x * index_t{64}; out < width; out += gridDim.x * index_t{64}) {
        steps.combine(static_cast<int>(out), 64);  // narrow-ok: host looked
      }
    }
  } else if (warp_number() < 2) {
    if (threadIdx.x == 0) layer_loader<Tile>(p, memory).run(first_tile);
    await_earlier();
  } else if (group < 0) {
    layer_factors<Tile> maker(p, memory, thread_number() - 64);
    while (reader.next(tile)) maker.make(tile, k_blocks_of(tile));
  } else {
    begin_early();
    ring_place<Tile::stages> at;
    layer_steps<Tile, Type> steps(p, memory, group);
    while (reader.next(tile)) {
      grouped_gemm_wgmma_parameters const& of = p.product[tile.product];
      load_output_terms(of, tile, group * 64, memory.of.terms[group]);
      multiply_tile(of, memory.of, tile, k_blocks_of(tile), at);
      steps.written(tile);
    }
  }
}

using eight_tile = layer_tile_shape<e4m3_numbers, 8, 12>;
using sixteen_tile = layer_tile_shape<e4m3_numbers, 16, 11>;

template <class Tile>
layer_wgmma_shape shape_of() {
  return {Tile::threads, sizeof(layer_memory<Tile>) + 1024};
}
template <class Tile>
kernel<layer_wgmma_parameters> kernel_of(char const* name, dtype type) {
  return {
      name,
      type == dtype::bf16 ? layer_wgmma_few<Tile, dtype::bf16> : layer_wgmma_few<Tile, dtype::f16>,
      true};
}

}  // namespace

layer_wgmma_shape layer_wgmma_shape_of(layer_rows rows) {
  return rows == layer_rows::eight ? shape_of<eight_tile>() : shape_of<sixteen_tile>();
}

kernel<layer_wgmma_parameters> layer_wgmma_kernel(layer_rows rows, dtype type) {
  return rows == layer_rows::eight ? kernel_of<eight_tile>("layer_wgmma_eight", type)
                                   : kernel_of<sixteen_tile>("layer_wgmma_sixteen", type);
}

}  // namespace moe64::cuda
