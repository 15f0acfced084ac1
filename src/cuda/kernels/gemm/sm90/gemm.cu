#include "cuda/kernels/gemm/sm90/wide/broad.cuh"

namespace moe64::cuda {
namespace {

// Boxes of y, and of weights, which the host describes (grouped_gemm_wgmma.cpp).
using whole_tile = wide_tile<e4m3_numbers, 3, true>;
static_assert(whole_tile::block == 64 && whole_tile::out_cols == 64);
static_assert(broad_tile::block == 64 && broad_tile::out_cols == 64 && broad_tile::outs == 192);

template <class Numbers>
wgmma_choice choice_of(wgmma_size size) {
  switch (size) {
    case wgmma_size::few:
      return {wgmma_kernel_small<Numbers>(size), wgmma_shape_of<wgmma_few<Numbers>>};
    case wgmma_size::some:
      return {wgmma_kernel_small<Numbers>(size), wgmma_shape_of<wgmma_some<Numbers>>};
    case wgmma_size::more:
      if constexpr (Numbers::scaled) {
        return {wgmma_kernel_more(), wide_shape_of<wide_tile<Numbers, 3>>};
      }
      [[fallthrough]];
    case wgmma_size::whole:
      if constexpr (Numbers::scaled) {
        return {wgmma_kernel_whole(), wide_shape_of<whole_tile>};
      }
      [[fallthrough]];
    case wgmma_size::broad:
      if constexpr (Numbers::scaled) {
        wgmma_shape shape = wide_shape_of<broad_tile>;
        shape.rows *= broad_tile::cluster;  // a pair shares outputs, not rows
        shape.outs = broad_tile::outs;
        return {wgmma_kernel_broad(), shape};
      }
      [[fallthrough]];
    case wgmma_size::many:
      break;
  }
  return {wgmma_kernel_many<Numbers>(), wide_shape_of<wide_tile<Numbers, 2>>};
}

}  // namespace

wgmma_choice grouped_gemm_wgmma_choice(wgmma_size size, dtype numbers) {
  if (numbers == dtype::bf16) return choice_of<bf16_numbers>(size);
  if (numbers == dtype::f16) return choice_of<f16_numbers>(size);
  return choice_of<e4m3_numbers>(size);
}

}  // namespace moe64::cuda
