#include "cuda/kernels/grouped_gemm_wgmma_kernel.cuh"

namespace moe64::cuda {
namespace {

__global__ void __launch_bounds__(wide_tile::threads, 1) __cluster_dims__(wide_tile::cluster, 1, 1)
    grouped_gemm_wgmma_wide(__grid_constant__ grouped_gemm_wgmma_parameters const p) {
  extern __shared__ std::uint8_t shared[];
  auto& memory = aligned_memory<wide_memory>(shared);
  if (threadIdx.x == 0) make_barriers(memory, true, wide_tile::cluster);
  index_t const tiles_each = ceil_div(p.n_part, index_t{wide_tile::outs});
  tile_cut const cut = {p.expert_begin, p.y.extent[0], wide_tile::rows,
                        ceil_div(p.parts * tiles_each, index_t{wide_tile::cluster}), 64};
  expert_tiles const tiles(cut, memory.tile_sums);
  cute::cluster_sync();
  int const k_blocks = static_cast<int>(ceil_div(p.k, index_t{128}));  // narrow-ok: host looked
  if (warp_number() < 4) {
    cutlass::arch::warpgroup_reg_dealloc<feeding_registers>();
    if (warp_number() == 0) {
      publish_tiles<wide_tile::cluster>(tiles, wide_places{tiles_each, p.parts}, memory);
    } else {
      feed<wide_tile, true, wide_loader>(p, memory, k_blocks);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<multiplying_registers>();
    tile_reader reader(memory.tile, memory.tiles);
    ring_place<wide_tile::stages> at;
    gemm_tile tile;
    while (reader.next(tile)) {
      load_output_terms(p, tile, 0, memory.terms[warp_number() / 4 - 1]);
      if (row_blocks(tile) == 2) {
        multiply_tile<2>(p, memory, tile, k_blocks, at);
      } else {
        multiply_tile<1>(p, memory, tile, k_blocks, at);
      }
    }
  }
  // A block's memory must outlive what its pair writes there.
  cute::cluster_sync();
}

}  // namespace

template <>
kernel<grouped_gemm_wgmma_parameters> wgmma_kernel_many<e4m3_numbers>() {
  return {"grouped_gemm_wgmma_e4m3_many", grouped_gemm_wgmma_wide};
}

}  // namespace moe64::cuda
