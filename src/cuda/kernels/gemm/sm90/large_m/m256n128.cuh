#pragma once

#include "cuda/kernels/gemm/sm90/large_m/epilogue.cuh"

/// Who has what of a tile of m256n128: each of the two consumer warpgroups half of the sub-tiles;
/// an odd one and the tail rows they share, 64 outputs each.
namespace moe64::cuda {

/// By the code for its number of sub-tiles.
template <class Tile, bool Tail>
__device__ __forceinline__ void compute_m256n128(large_m_consumer<Tile>& thread,
                                                 gemm_tile const& tile, int k_stages) {
  int const sub_tiles = row_split(tile.rows).sub_tiles;
  if (sub_tiles == 4) return compute_rows<Tile, 2, false, Tail>(thread, tile, k_stages);
  if (sub_tiles == 3) return compute_rows<Tile, 1, true, Tail>(thread, tile, k_stages);
  if (sub_tiles == 2) return compute_rows<Tile, 1, false, Tail>(thread, tile, k_stages);
  if (sub_tiles == 1) return compute_rows<Tile, 0, true, Tail>(thread, tile, k_stages);
  if constexpr (Tail) compute_rows<Tile, 0, false, true>(thread, tile, k_stages);
}

template <class Tile>
__device__ __forceinline__ void compute_m256n128(large_m_consumer<Tile>& thread,
                                                 gemm_tile const& tile, int k_stages) {
  if (row_split(tile.rows).tail) return compute_m256n128<Tile, true>(thread, tile, k_stages);
  compute_m256n128<Tile, false>(thread, tile, k_stages);
}

}  // namespace moe64::cuda
