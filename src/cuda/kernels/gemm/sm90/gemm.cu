#include "cuda/kernels/gemm/sm90/large_m/tile.cuh"
#include "cuda/kernels/gemm/sm90/swap_ab/tile.cuh"

namespace moe64::cuda {
namespace {

template <class Elements, gemm_tile_config Config>
sm90_kernel kernel_of() {
  if constexpr (Config.a == operand_a::weights) {
    using tile = swap_ab_tile<Elements, Config>;
    return {swap_ab_kernel<tile>(), launch_config(Config, swap_ab_shared_bytes<tile>)};
  } else {
    using tile = large_m_tile<Elements, Config>;
    return {large_m_kernel<tile>(), launch_config(Config, sizeof(large_m_memory<tile>))};
  }
}

/// The one of these tiles that has this name.
template <class Elements, gemm_tile_config... Configs>
sm90_kernel find(tile_shape tile) {
  sm90_kernel found = {};
  auto const look = [&]<gemm_tile_config Config>() {
    if (Config.tile == tile) found = kernel_of<Elements, Config>();
  };
  (look.template operator()<Configs>(), ...);
  return found;
}

}  // namespace

sm90_kernel sm90_gemm_kernel(tile_shape tile, dtype elements) {
  if (elements == dtype::bf16) {
    return find<bf16_elements, bf16_m32n128, bf16_m64n128, bf16_m256n128>(tile);
  }
  if (elements == dtype::f16) {
    return find<f16_elements, bf16_m32n128, bf16_m64n128, bf16_m256n128>(tile);
  }
  return find<e4m3_elements, w8a8_m32n128, w8a8_m64n128, w8a8_m192n128, w8a8_m192n128_tma_store,
              w8a8_m128n192, w8a8_m256n128>(tile);
}

}  // namespace moe64::cuda
