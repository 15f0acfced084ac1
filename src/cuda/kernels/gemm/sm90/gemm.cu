#include "cuda/kernels/gemm/sm90/large_m/tile.cuh"

namespace moe64::cuda {
namespace {

// TMA boxes of y and of weights, which the host describes (cuda/gemm/sm90/gemm.cpp).
using tma_store_tile = large_m_tile<e4m3_elements, 3, true>;
static_assert(tma_store_tile::block == 64 && tma_store_tile::out_cols == 64);
static_assert(m128n192_tile::block == 64 && m128n192_tile::out_cols == 64 &&
              m128n192_tile::outs == 192);

template <class Elements, tile_shape Tile>
sm90_kernel swap_ab() {
  return {swap_ab_kernel<Elements, Tile>(), swap_ab_config<swap_ab_tile_of<Elements, Tile>>};
}

template <class Elements, tile_shape Tile>
sm90_kernel large_m() {
  return {large_m_kernel<Elements, Tile>(), large_m_config<large_m_tile_of<Elements, Tile>>};
}

/// Tiles that all types of operands have.
template <class Elements>
sm90_kernel common_kernel(tile_shape tile) {
  switch (tile) {
    case tile_shape::m32n128:
      return swap_ab<Elements, tile_shape::m32n128>();
    case tile_shape::m64n128:
      return swap_ab<Elements, tile_shape::m64n128>();
    default:
      return large_m<Elements, tile_shape::m256n128>();
  }
}

sm90_kernel w8a8_kernel(tile_shape tile) {
  switch (tile) {
    case tile_shape::m192n128:
      return large_m<e4m3_elements, tile_shape::m192n128>();
    case tile_shape::m192n128_tma_store:
      return large_m<e4m3_elements, tile_shape::m192n128_tma_store>();
    case tile_shape::m128n192: {
      sm90_kernel found = large_m<e4m3_elements, tile_shape::m128n192>();
      found.config.rows *= m128n192_tile::cluster;  // its cluster shares outputs, not rows
      found.config.outs = m128n192_tile::outs;
      return found;
    }
    default:
      return common_kernel<e4m3_elements>(tile);
  }
}

}  // namespace

sm90_kernel sm90_gemm_kernel(tile_shape tile, dtype elements) {
  if (elements == dtype::bf16) return common_kernel<bf16_elements>(tile);
  if (elements == dtype::f16) return common_kernel<f16_elements>(tile);
  return w8a8_kernel(tile);
}

}  // namespace moe64::cuda
