#pragma once

#include "core/exponential.hpp"
#include "cuda/kernels/device/number.cuh"
#include "cuda/kernels/route/route.hpp"

#include <limits>

/// What the kernels of route share. One warp per token, with the CPU's operations in the CPU's
/// order: only comparisons, whose order does not matter, are split among lanes; every sum is
/// computed by all lanes alike.
namespace moe64::cuda {

inline constexpr unsigned all_lanes = ~0U;
inline constexpr float renormalize_epsilon = 1e-20F;

__device__ inline int lane_id() { return threadIdx.x % 32; }

/// visit(token) for the tokens of this warp.
template <class Visit>
__device__ void for_each_token(index_t tokens, Visit const& visit) {
  index_t const first = index_t{blockIdx.x} * route_warps + threadIdx.x / 32;
  for (index_t token = first; token < tokens; token += index_t{gridDim.x} * route_warps) {
    visit(token);
  }
}

__device__ inline index_t load_id(tensor_view const& ids, index_t token, index_t k) {
  index_t const offset = offset_of(ids, token, k);
  return ids.type == dtype::int32 ? index_t{static_cast<std::int32_t const*>(ids.data)[offset]}
                                  : static_cast<std::int64_t const*>(ids.data)[offset];
}

__device__ inline void store_id(tensor_view const& ids, index_t token, index_t k, index_t id) {
  index_t const offset = offset_of(ids, token, k);
  if (ids.type == dtype::int32) {
    auto const narrowed = static_cast<std::int32_t>(id);  // narrow-ok: experts were checked to fit
    static_cast<std::int32_t*>(ids.data)[offset] = narrowed;
  } else {
    static_cast<std::int64_t*>(ids.data)[offset] = id;
  }
}

/// The dynamic shared memory of this warp, of `words` 4-byte words.
__device__ inline float* warp_memory(index_t words) {
  extern __shared__ __align__(16) float memory[];
  return memory + threadIdx.x / 32 * words;
}

/// The scores of one token: kept in shared memory, or computed at every use.
template <bool Kept>
class token_scores {
 public:
  __device__ token_scores(tensor_view const& logits, scoring score, index_t token, float* kept)
      : logits_(row_of(logits, token)), experts_(logits.extent[1]), score_(score), kept_(kept) {
    if (score == scoring::softmax) find_largest();
    if constexpr (Kept) {
      keep();
    } else if (score == scoring::softmax) {
      add_exponentials();
    }
  }

  [[nodiscard]] __device__ index_t experts() const { return experts_; }
  [[nodiscard]] __device__ float logit(index_t e) const { return load_number(logits_, e); }
  [[nodiscard]] __device__ float operator()(index_t e) const {
    if constexpr (Kept) return kept_[e];
    return score_ == scoring::softmax ? exponential(e) / sum_ : unscaled(e);
  }

 private:
  [[nodiscard]] __device__ float exponential(index_t e) const {
    return exp_f32(logit(e) - largest_);
  }
  /// The score; of the softmax its numerator.
  [[nodiscard]] __device__ float unscaled(index_t e) const {
    switch (score_) {
      case scoring::softmax:
        return exponential(e);
      case scoring::softmax_of_selected:
        return logit(e);
      default:
        return 1.0F / (1.0F + exp_f32(-logit(e)));
    }
  }

  __device__ void find_largest() {
    largest_ = -std::numeric_limits<float>::infinity();
    for (index_t e = lane_id(); e < experts_; e += 32) largest_ = fmaxf(largest_, logit(e));
    for (int distance = 16; distance > 0; distance /= 2) {
      largest_ = fmaxf(largest_, __shfl_xor_sync(all_lanes, largest_, distance));
    }
  }

  __device__ void add_exponentials() {
    for (index_t begin = 0; begin < experts_; begin += 32) {
      index_t const e = begin + lane_id();
      float const mine = e < experts_ ? exponential(e) : 0.0F;
      // Zeros past the last one do not change a sum that is positive or NaN.
      for (int lane = 0; lane < 32; ++lane) sum_ += __shfl_sync(all_lanes, mine, lane);
    }
  }

  __device__ void keep() {
    index_t const padded = ceil_div(experts_, 4) * 4;
    for (index_t e = lane_id(); e < padded; e += 32) kept_[e] = e < experts_ ? unscaled(e) : 0.0F;
    __syncwarp();
    if (score_ != scoring::softmax) return;
    for (index_t e = 0; e < padded; e += 4) {
      float4 const four = *reinterpret_cast<float4 const*>(kept_ + e);
      sum_ = (((sum_ + four.x) + four.y) + four.z) + four.w;
    }
    __syncwarp();
    for (index_t e = lane_id(); e < experts_; e += 32) kept_[e] /= sum_;
    __syncwarp();
  }

  row_view logits_;
  index_t experts_;
  scoring score_;
  float* kept_;
  float largest_ = 0.0F;
  float sum_ = 0.0F;
};

}  // namespace moe64::cuda
