#pragma once

#include "cuda/kernels/gemm/sm80/mma.cuh"
#include "cuda/kernels/gemm/sm90/wgmma.cuh"

/// WGMMA with operand A in registers. Of each 64 x 16 values of A a thread holds rows
/// 16 * warp + lane / 4 and that + 8, and of each the pairs that begin at lane % 4 * 2 and that +
/// 8: {row, row + 8} of the first pairs, then of the second.
namespace moe64::cuda {

/// Operand A of a k-step, as its thread holds it.
struct a_fragment {
  std::uint32_t pair[4];
};

struct bf16_register_operand : bf16_pair {
  template <int Rows>
  struct mma;
};
struct f16_register_operand : f16_pair {
  template <int Rows>
  struct mma;
};

#define MOE64_WGMMA(rows)                                                                   \
  template <>                                                                               \
  struct bf16_register_operand::mma<rows>                                                   \
      : cute::SM90::GMMA::MMA_64x##rows##x16_F32BF16BF16_RS<cute::SM90::GMMA::Major::K,     \
                                                            cute::SM90::GMMA::Major::K> {}; \
  template <>                                                                               \
  struct f16_register_operand::mma<rows>                                                    \
      : cute::SM90::GMMA::MMA_64x##rows##x16_F32F16F16_RS<cute::SM90::GMMA::Major::K,       \
                                                          cute::SM90::GMMA::Major::K> {};
MOE64_WGMMA(8)
MOE64_WGMMA(16)
MOE64_WGMMA(24)
MOE64_WGMMA(32)
MOE64_WGMMA(40)
MOE64_WGMMA(48)
MOE64_WGMMA(56)
MOE64_WGMMA(64)
MOE64_WGMMA(72)
MOE64_WGMMA(80)
MOE64_WGMMA(88)
MOE64_WGMMA(96)
MOE64_WGMMA(104)
MOE64_WGMMA(112)
MOE64_WGMMA(120)
MOE64_WGMMA(128)
MOE64_WGMMA(136)
MOE64_WGMMA(144)
#undef MOE64_WGMMA

template <class Element, int Rows, std::size_t... I>
__device__ __forceinline__ void wgmma_register_step(a_fragment const& a, std::uint64_t b,
                                                    float* acc, std::index_sequence<I...>) {
  Element::template mma<Rows>::fma(a.pair[0], a.pair[1], a.pair[2], a.pair[3], b, acc[I]...,
                                   cute::SM90::GMMA::ScaleOut::One);
}

/// Keeps the compiler from moving accesses of registers that WGMMA reads.
__device__ __forceinline__ void fence_registers(a_fragment& a) {
#pragma unroll
  for (std::uint32_t& pair : a.pair) cute::warpgroup_fence_operand(pair);
}

}  // namespace moe64::cuda
