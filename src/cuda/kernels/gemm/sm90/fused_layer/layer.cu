#include "cuda/kernels/gemm/sm90/fused_layer/consumer.cuh"
#include "cuda/kernels/gemm/sm90/fused_layer/finisher.cuh"
#include "cuda/kernels/gemm/sm90/fused_layer/producer.cuh"
#include "cuda/kernels/gemm/sm90/fused_layer/scale_producer.cuh"

namespace moe64::cuda {
namespace {

/// Computes: a W8A8 layer of few tokens from its gathered rows: gate_up, activation, down and
///   combination.
/// Grid: persistent, a CTA per SM; tiles of gate_up, then of down, from one work counter. PDL: it
///   follows plan_gather_kernel and requests weights before that has ended.
/// Warp roles: layer_warp: 0 takes tiles and loads them by TMA; 1 watches for rows of the
///   activation; 2 and 3 scale products; two consumer warpgroups; 12 and 13 activation and
///   combination.
/// Shared memory: layer_memory: swap_ab_memory, the sorted slots, row tiles, a ring of tiles with a
///   barrier for the x of each, a ring of tiles that are written.
/// Limits: at most small_batch slots and most_layer_rows tokens; no tables of places.
template <class Tile, dtype Type>
__global__ void __maxnreg__(Tile::config.consumer_registers)
    sm90_fused_layer(__grid_constant__ sm90_fused_layer_parameters const p) {
  extern __shared__ std::uint8_t shared[];
  auto const misaligned = cute::cast_smem_ptr_to_uint(shared) % 1024;
  auto& memory = *reinterpret_cast<layer_memory<Tile>*>(shared + (1024 - misaligned) % 1024);
  int const warp = warp_number();
  // plan_gather_kernel lets this one begin when all before it has ended and counters are zeros.
  unsigned first_tile = 0;
  if (threadIdx.x == first_thread_of(layer_warp::producer)) {
    first_tile = atomicAdd(p.counters + p.index.work(), 1U);
  }
  index_t const id = thread_number() < p.plan.slots ? id_of_slot(p.plan, thread_number()) : -1;
  if (threadIdx.x == first_thread_of(layer_warp::x_watcher)) memory.make_barriers();
  constexpr unsigned prefetcher = first_thread_of(layer_warp::first_scale);  // and the next
  if (threadIdx.x >= prefetcher && threadIdx.x < prefetcher + 2) {
    prefetch_maps(p.gemm[threadIdx.x - prefetcher]);
  }
  if (p.plan.slots <= warp_slots) {
    __syncthreads();
    if (warp == layer_warp::producer) find_row_tiles_in_warp(p.plan, id, memory);
  } else {
    find_row_tiles(p.plan, id, memory);
  }
  if (warp == layer_warp::producer) {
    if (lane_number() == 0) layer_producer<Tile>(p, memory).run(first_tile);
  } else if (warp == layer_warp::x_watcher) {
    watch_x(p, memory);
  } else if (warp < layer_warp::first_consumer) {
    layer_scale_producer<Tile>(p, memory, thread_number() - layer_warp::first_scale * 32).run();
  } else if (warp < layer_warp::first_finisher) {
    consume_layer(p, memory);
  } else {
    layer_finisher<Tile, Type>(p, memory).run();
  }
}

template <gemm_tile_config Config>
inline constexpr kernel_name layer_kernel_name = {"sm90_fused_layer", name(Config.tile)};

template <gemm_tile_config Config>
fused_layer_kernel kernel_of(dtype type) {
  using tile = swap_ab_tile<e4m3_elements, Config>;
  return {{layer_kernel_name<Config>.text,
           type == dtype::bf16 ? sm90_fused_layer<tile, dtype::bf16>
                               : sm90_fused_layer<tile, dtype::f16>,
           true},
          layer_warp::all * 32,
          sizeof(layer_memory<tile>) + 1024};
}

}  // namespace

fused_layer_kernel sm90_fused_layer_kernel(tile_shape tile, dtype type) {
  return tile == tile_shape::m8n128 ? kernel_of<layer_m8n128>(type)
                                    : kernel_of<layer_m16n128>(type);
}

}  // namespace moe64::cuda
