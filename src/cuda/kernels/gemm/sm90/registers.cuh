#pragma once

#include "cuda/kernels/gemm/sm80/mma.cuh"
#include "cuda/kernels/gemm/sm90/wgmma.cuh"

/// Products whose left operand comes from registers. A thread holds, of each 64 x 16 numbers, rows
/// 16 * warp + lane / 4 and that + 8, and of each the pairs from lane % 4 * 2 and that + 8 on:
/// {row, row + 8} of the first, then of the second.
namespace moe64::cuda {

struct left_fragment {
  std::uint32_t pair[4];
};

struct bf16_register_operand : bf16_pair {
  template <int Rows>
  struct product;
};
struct f16_register_operand : f16_pair {
  template <int Rows>
  struct product;
};

#define MOE64_PRODUCTS(rows)                                                                \
  template <>                                                                               \
  struct bf16_register_operand::product<rows>                                               \
      : cute::SM90::GMMA::MMA_64x##rows##x16_F32BF16BF16_RS<cute::SM90::GMMA::Major::K,     \
                                                            cute::SM90::GMMA::Major::K> {}; \
  template <>                                                                               \
  struct f16_register_operand::product<rows>                                                \
      : cute::SM90::GMMA::MMA_64x##rows##x16_F32F16F16_RS<cute::SM90::GMMA::Major::K,       \
                                                          cute::SM90::GMMA::Major::K> {};
MOE64_PRODUCTS(8)
MOE64_PRODUCTS(16)
MOE64_PRODUCTS(24)
MOE64_PRODUCTS(32)
MOE64_PRODUCTS(40)
MOE64_PRODUCTS(48)
MOE64_PRODUCTS(56)
MOE64_PRODUCTS(64)
MOE64_PRODUCTS(72)
MOE64_PRODUCTS(80)
MOE64_PRODUCTS(88)
MOE64_PRODUCTS(96)
MOE64_PRODUCTS(104)
MOE64_PRODUCTS(112)
MOE64_PRODUCTS(120)
MOE64_PRODUCTS(128)
MOE64_PRODUCTS(136)
MOE64_PRODUCTS(144)
#undef MOE64_PRODUCTS

template <class Left, int Rows, std::size_t... I>
__device__ __forceinline__ void wgmma_register_step(left_fragment const& left, std::uint64_t right,
                                                    float* sums, std::index_sequence<I...>) {
  Left::template product<Rows>::fma(left.pair[0], left.pair[1], left.pair[2], left.pair[3], right,
                                    sums[I]..., cute::SM90::GMMA::ScaleOut::One);
}

/// Keeps the compiler from moving accesses of registers that the tensor cores read.
__device__ __forceinline__ void fence_registers(left_fragment& left) {
#pragma unroll
  for (std::uint32_t& pair : left.pair) cute::warpgroup_fence_operand(pair);
}

}  // namespace moe64::cuda
