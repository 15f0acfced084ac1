#pragma once

#include "cuda/kernels/gemm/sm90/block_scale_row.cuh"
#include "cuda/kernels/gemm/sm90/tile_ring.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// What the epilogues of swap_ab and large_m have in common: row scales and bias, one rounding to
/// bf16 or f16, stores of 16 bytes.
namespace moe64::cuda {

/// y = accumulator * factor + addend, by output.
template <int Outs>
struct output_terms {
  float factor[Outs], addend[Outs];

  [[nodiscard]] __device__ float of(int out, float accumulator) const {
    return accumulator * factor[out] + addend[out];
  }
};

__device__ inline bool has_output_terms(sm90_gemm_parameters const& p, gemm_tile const& tile) {
  return p.row_scales[tile.part].data != nullptr || p.bias[tile.part].present() || p.poison_invalid;
}

/// By the 128 threads of a warpgroup, before its main loop: so this code is there once, and not for
/// every number of rows. `first` is the first output of the terms in the tile.
template <int Outs>
__device__ void load_output_terms(sm90_gemm_parameters const& p, gemm_tile const& tile, int first,
                                  output_terms<Outs>& terms) {
  if (!has_output_terms(p, tile)) return;
  tensor_view const& bias = p.bias[tile.part];
  index_t const place = scale_place_of(p.expert_place[tile.part], tile.expert);
  // Adding -0 leaves all bits as they are.
  float const none = p.poison_invalid ? -0.0F : 0.0F;
#pragma unroll 1
  for (int i = thread_number() % 128; i < Outs; i += 128) {
    index_t const out = index_t{tile.out} + first + i;
    if (out >= p.n_part) return;
    terms.factor[i] = block_scale_row(p.row_scales[tile.part], place, out).at(0);
    terms.addend[i] = !bias.present()
                          ? none
                          : load_number(bias.type, bias.data, offset_of(bias, tile.expert, out));
  }
}

/// Two values of y.
template <bool Bf16>
__device__ __forceinline__ std::uint32_t packed(float a, float b) {
  if constexpr (Bf16) {
    __nv_bfloat162 const pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<std::uint32_t const*>(&pair);
  } else {
    __half2 const pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<std::uint32_t const*>(&pair);
  }
}
__device__ inline std::uint32_t packed(float a, float b, bool bf16) {
  return bf16 ? packed<true>(a, b) : packed<false>(a, b);
}

/// 16 bytes of y at once. The compiler may scalarise the store of a uint4 into four that each touch
/// every sector again (docs/experiments/sm90-epilogue.md).
__device__ __forceinline__ void store_vec8(std::uint16_t* to, uint4 const& values) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(values.x), "r"(values.y),
               "r"(values.z), "r"(values.w)
               : "memory");
}

/// Outputs [out, out + 8) of a row, those that its part has.
__device__ inline void store_outputs(sm90_gemm_parameters const& p, std::uint8_t const* from,
                                     std::uint16_t* to, int out) {
  if (p.y_vectors && out + 8 <= p.n_part) {
    store_vec8(to, *reinterpret_cast<uint4 const*>(from));
    return;
  }
#pragma unroll 1
  for (int j = 0; j < within(p.n_part - out, 8); ++j) {
    to[j] = reinterpret_cast<std::uint16_t const*>(from)[j];
  }
}

}  // namespace moe64::cuda
