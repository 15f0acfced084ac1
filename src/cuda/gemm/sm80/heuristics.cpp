#include "cuda/gemm/sm80/heuristics.hpp"

namespace moe64::cuda::sm80 {
namespace {

using enum mma_tile;

constexpr char const* few_rows = "up to 16 rows per expert: fewest padded rows, deepest pipeline";
constexpr char const* some_rows = "up to 64 rows per expert, or little shared memory";
constexpr char const* fits_all = "least shared memory: fits every device";

constexpr tile_rule of_plain[] = {
    {.tile = m16n128, .why = few_rows, .most_rows = 16},
    {.tile = m128n64,
     .why = "few outputs, as of a LoRA factor: loads of x are the bottleneck",
     .most_n = config_of(m128n64).outs},
    {.tile = m128n256, .why = "most MMAs for each byte of a stage", .least_rows = 65},
    {.tile = m64n128, .why = some_rows},
    {.tile = m16n128, .why = fits_all},
};

constexpr tile_rule of_codes[] = {
    {.tile = m16n128, .why = few_rows, .most_rows = 16},
    {.tile = m256n128, .why = "a weight is dequantised once for 256 rows", .least_rows = 65},
    {.tile = m64n128, .why = some_rows},
    {.tile = m16n128, .why = fits_all},
};

constexpr tile_rule of_element_scaled[] = {
    {.tile = m32n128, .why = "the one tile that scales element by element"},
};

// Rows are outputs of the layer, the outputs of a tile columns of x. 96 KiB of m64n128 fit every
// device from sm_80 on.
constexpr tile_rule of_wgrad[] = {
    {.tile = m64n128, .why = "up to 64 rows of a weight matrix", .most_rows = 64},
    {.tile = m128n64,
     .why = "few columns, as of a LoRA factor: loads of dy are the bottleneck",
     .most_n = config_of(m128n64).outs},
    {.tile = m128n256, .why = "most MMAs for each byte of a stage"},
    {.tile = m64n128, .why = "little shared memory"},
};

/// What a kernel declares itself and what the system reserves, of the shared memory of a CTA.
constexpr index_t reserved_bytes = 4096;

}  // namespace

std::span<tile_rule const> gemm_tiles(mma_weights weights) {
  if (weights == mma_weights::plain) return of_plain;
  if (weights == mma_weights::element_scaled) return of_element_scaled;
  return of_codes;
}

std::span<tile_rule const> wgrad_tiles() { return of_wgrad; }

mma_tile choose_tile(launcher const& on, std::span<tile_rule const> rules, gemm_extents const& call,
                     bool quantized) {
  index_t const limit = on.shared_bytes() - reserved_bytes;
  auto const fits = [&](mma_tile tile) { return config_of(tile).shared_bytes(quantized) <= limit; };
  return cuda::choose_tile(on.operation(), rules, call, on.where(), fits).tile;
}

}  // namespace moe64::cuda::sm80
