#pragma once

#include "cuda/kernels/gemm/expert_tiles.cuh"
#include "cuda/kernels/gemm/sm90/tile_ring.cuh"

/// Round-robin over the tiles of all experts in their order: cluster c of n takes tiles c, c + n,
/// ...
namespace moe64::cuda {

/// A tile of a cluster as that of one of its CTAs, which have neighbouring outputs.
struct tile_split {
  index_t tiles_per_part;  ///< tiles of outputs of a part
  int outs, most_rows, cluster, rank;

  [[nodiscard]] __device__ gemm_tile operator()(tile_place const& place) const {
    gemm_tile tile;
    tile.expert = static_cast<int>(place.expert);  // narrow-ok: host looked
    tile.row = static_cast<int>(place.row_begin);  // narrow-ok: host looked
    tile.rows = within(place.rows, most_rows);
    tile.part = place.out_tile >= tiles_per_part ? 1 : 0;
    index_t const first = place.out_tile - tile.part * tiles_per_part;
    tile.out = static_cast<int>((first * cluster + rank) * outs);  // narrow-ok: host looked
    return tile;
  }
};

/// By the scheduler warp. All CTAs of a cluster find the same tiles.
template <class Tiles, class Memory>
__device__ void publish_tiles(Tiles const& tiles, tile_split const& split, Memory& memory) {
  tile_publisher publisher(memory.tile, memory.tiles);
  int const clusters = static_cast<int>(gridDim.x) / split.cluster;  // narrow-ok: as launched
  index_t number = static_cast<int>(blockIdx.x) / split.cluster;     // narrow-ok: as launched
  for (; number < tiles.count(); number += clusters) publisher.publish(split(tiles.at(number)));
  publisher.end();
}

}  // namespace moe64::cuda
