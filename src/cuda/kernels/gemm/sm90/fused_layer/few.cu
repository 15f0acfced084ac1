#include "cuda/kernels/gemm/sm90/fused_layer/steps.cuh"

namespace moe64::cuda {
namespace {

template <class Tile, dtype Type>
__global__ void __maxnreg__(128)
    sm90_fused_layer(__grid_constant__ sm90_fused_layer_parameters const p) {
  extern __shared__ std::uint8_t shared[];
  auto const misaligned = cute::cast_smem_ptr_to_uint(shared) % 1024;
  auto& memory = *reinterpret_cast<layer_memory<Tile>*>(shared + (1024 - misaligned) % 1024);
  int const warp = warp_number();
  // plan_gather_few lets this kernel begin when all before it has ended and counters are zeros.
  unsigned first_tile = 0;
  if (threadIdx.x == 0) first_tile = atomicAdd(p.counters, 1U);
  index_t const id = thread_number() < p.plan.slots ? few_id(p.plan, thread_number()) : -1;
  if (threadIdx.x == 32) memory.make_barriers();
  if (threadIdx.x >= 64 && threadIdx.x < 66) prefetch_maps(p.product[threadIdx.x - 64]);
  if (p.plan.slots <= warp_slots) {
    __syncthreads();
    if (warp == 0) find_units_in_warp(p.plan, id, memory);
  } else {
    find_units(p.plan, id, memory);
  }
  if (warp == 0) {
    if (lane_number() == 0) layer_loader<Tile>(p, memory).run(first_tile);
  } else if (warp == layer_warps::watching) {
    watch_x(p, memory);
  } else if (warp < layer_warps::multiplying) {
    layer_factors<Tile>(p, memory, thread_number() - layer_warps::factors * 32).run();
  } else if (warp < layer_warps::finishing) {
    multiply_layer(p, memory);
  } else {
    layer_finisher<Tile, Type>(p, memory).run();
  }
}

using eight_tile = layer_tile_shape<e4m3_elements, 8, 12>;
using sixteen_tile = layer_tile_shape<e4m3_elements, 16, 11>;

template <class Tile>
fused_layer_config shape_of() {
  return {layer_warps::all * 32, sizeof(layer_memory<Tile>) + 1024};
}
template <class Tile>
kernel<sm90_fused_layer_parameters> kernel_of(char const* name, dtype type) {
  return {name,
          type == dtype::bf16 ? sm90_fused_layer<Tile, dtype::bf16>
                              : sm90_fused_layer<Tile, dtype::f16>,
          true};
}

}  // namespace

fused_layer_config sm90_fused_layer_config(layer_rows rows) {
  return rows == layer_rows::eight ? shape_of<eight_tile>() : shape_of<sixteen_tile>();
}

kernel<sm90_fused_layer_parameters> sm90_fused_layer_kernel(layer_rows rows, dtype type) {
  return rows == layer_rows::eight ? kernel_of<eight_tile>("layer_wgmma_eight", type)
                                   : kernel_of<sixteen_tile>("layer_wgmma_sixteen", type);
}

}  // namespace moe64::cuda
