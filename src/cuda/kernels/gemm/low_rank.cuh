#pragma once

#include "cuda/kernels/gemm/sm80/gemm.hpp"
#include "cuda/kernels/gemm/sm80/mma.cuh"

/// The factor V of a low-rank term scaling * u V^T as tensor cores take it.
namespace moe64::cuda {

/// Its number at (n, k), from number `first` on, where its expert begins; as f32.
template <class Pair>
__device__ float low_rank_number(low_rank_operands const& low, int part, index_t first, index_t n,
                                 index_t k) {
  index_t const at = first + n * low.n[part] + k * low.k[part];
  if (low.f32) return static_cast<float const*>(low.weights[part])[at];
  return Pair::low(static_cast<std::uint16_t const*>(low.weights[part])[at]);
}

/// f32 numbers are sums of three bf16 ones, which is exact.
__device__ inline int low_rank_terms(low_rank_operands const& low) { return low.f32 ? 3 : 1; }

/// The first of the terms of two numbers, which is taken from them.
template <class Pair>
__device__ std::uint32_t take_term(float (&rest)[2]) {
  std::uint32_t const pair = Pair::of(rest[0], rest[1]);
  float const taken[2] = {Pair::low(pair), Pair::high(pair)};
#pragma unroll
  for (int i = 0; i < 2; ++i) rest[i] = isfinite(taken[i]) ? rest[i] - taken[i] : 0.0F;
  return pair;
}

}  // namespace moe64::cuda
