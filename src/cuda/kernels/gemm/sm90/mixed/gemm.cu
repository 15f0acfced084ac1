#include "cuda/kernels/gemm/sm90/mixed/tile.cuh"

namespace moe64::cuda {
namespace {

/// Shared memory: mixed_memory and what aligning it takes. Of the 228 KB of an SM the system keeps
/// one for each CTA.
template <class Tile>
constexpr index_t shared_bytes = sizeof(mixed_memory<Tile>) + 1024;
template <class Tile>
constexpr bool fits = (shared_bytes<Tile> + 1024) * Tile::config.ctas_per_sm <= 228 * 1024;

template <class Element, mixed_tile_config Config>
mixed_kernel kernel_of() {
  using tile = mixed_tile<Element, Config>;
  static_assert(fits<tile>);
  gemm_config const shape = {.rows = tile::rows,
                             .outs = tile::outs,
                             .most_rows = tile::rows,
                             .cluster = tile::cluster,
                             .threads = tile::threads,
                             .shared_bytes = shared_bytes<tile>};
  return {mixed_kernel_of<Element, Config>(), {shape, tile::stage_k, Config.ctas_per_sm}};
}

/// The one of these tiles that has this name; they are all for the same weights.
template <mixed_tile_config... Configs>
mixed_kernel find(tile_shape tile, dtype element) {
  mixed_kernel found = {};
  auto const look = [&]<mixed_tile_config Config>() {
    if (Config.tile != tile) return;
    found = element == dtype::bf16 ? kernel_of<bf16_register_operand, Config>()
                                   : kernel_of<f16_register_operand, Config>();
  };
  (look.template operator()<Configs>(), ...);
  return found;
}

}  // namespace

mixed_kernel sm90_mixed_kernel(tile_shape tile, dtype element, mixed_weights weights) {
  switch (weights) {
    case mixed_weights::w8:
      return find<w8_m32n128, w8_m64n128, w8_m160n128, w8_m288n128>(tile, element);
    case mixed_weights::w8_transposed:
      return find<w8t_m32n128, w8t_m64n128, w8t_m288n128>(tile, element);
    default:
      return find<w4_m32n128, w4_m64n128, w4_m288n128>(tile, element);
  }
}

}  // namespace moe64::cuda
