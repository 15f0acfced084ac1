#pragma once

#include "cuda/kernels/gemm/low_rank.hpp"
#include "cuda/kernels/gemm/sm80/mma.cuh"

/// The factor V of a low-rank term scaling * u V^T as operand B of MMAs.
namespace moe64::cuda {

/// V(n, k) as f32; the matrix of its expert begins at element `first`.
template <class Element>
__device__ float low_rank_value(low_rank_operands const& low, int part, index_t first, index_t n,
                                index_t k) {
  index_t const at = first + n * low.n[part] + k * low.k[part];
  if (low.f32) return static_cast<float const*>(low.weights[part])[at];
  return Element::low(static_cast<std::uint16_t const*>(low.weights[part])[at]);
}

/// An f32 value is the sum of three bf16 ones, exactly: three MMAs.
__device__ inline int low_rank_terms(low_rank_operands const& low) { return low.f32 ? 3 : 1; }

/// The next term of each of two values, which is subtracted from them.
template <class Element>
__device__ std::uint32_t take_term(float (&remainder)[2]) {
  std::uint32_t const pair = Element::of(remainder[0], remainder[1]);
  float const taken[2] = {Element::low(pair), Element::high(pair)};
#pragma unroll
  for (int i = 0; i < 2; ++i) remainder[i] = isfinite(taken[i]) ? remainder[i] - taken[i] : 0.0F;
  return pair;
}

}  // namespace moe64::cuda
