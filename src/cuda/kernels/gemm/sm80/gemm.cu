#include "cuda/kernels/gemm/sm80/gemm.hpp"
#include "cuda/kernels/gemm/sm80/mma.cuh"

namespace moe64::cuda {
namespace {

using handle = kernel<sm80_gemm_parameters>;
using enum mma_tile;
using enum mma_weights;

template <class Pair, mma_tile Tile>
handle codes_kernel(mma_variant const& of) {
  return of.weights == vec16_scaled_e4m3 ? mma_kernel<Pair, Tile, vec16_scaled_e4m3>(of.k_major)
                                         : mma_kernel<Pair, Tile, vec16_scaled>(of.k_major);
}

/// Of the tiles for plain weights and for codes.
template <class Pair, mma_tile Tile>
handle any_kernel(mma_variant const& of) {
  return of.weights == plain ? mma_kernel<Pair, Tile, plain>(of.k_major)
                             : codes_kernel<Pair, Tile>(of);
}

template <class Pair>
handle kernel_of(mma_tile tile, mma_variant const& of) {
  switch (tile) {
    case m16n128:
      return any_kernel<Pair, m16n128>(of);
    case m32n128:
      return mma_kernel<Pair, m32n128, element_scaled>(of.k_major);
    case m64n128:
      return any_kernel<Pair, m64n128>(of);
    case m128n64:
      return mma_kernel<Pair, m128n64, plain>(of.k_major);
    case m128n256:
      return mma_kernel<Pair, m128n256, plain>(of.k_major);
    default:
      return codes_kernel<Pair, m256n128>(of);
  }
}

}  // namespace

handle sm80_gemm_kernel(mma_tile tile, mma_variant const& of) {
  return of.bf16 ? kernel_of<bf16_pair>(tile, of) : kernel_of<f16_pair>(tile, of);
}

}  // namespace moe64::cuda
