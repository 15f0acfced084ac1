#pragma once

#include "cuda/runtime/kernel.hpp"
#include "moe64/ops.hpp"

namespace moe64::cuda {

struct route_parameters {
  tensor_view logits;               ///< [tokens, experts]
  tensor_view selection_bias;       ///< [experts] f32, or absent
  tensor_view expert_ids, weights;  ///< [tokens, top_k]
  route_options options;
};

struct route_backward_parameters {
  tensor_view logits;                 ///< [tokens, experts]
  tensor_view expert_ids, d_weights;  ///< [tokens, top_k]
  tensor_view d_logits;               ///< [tokens, experts]
  route_options options;
};

/// One warp per token. The reference kernels compute a score whenever they need it, of any number
/// of experts; the scored ones each score once, into shared memory.
inline constexpr int route_warps = 4;
[[nodiscard]] kernel<route_parameters> route_reference_kernel();
[[nodiscard]] kernel<route_parameters> route_scored_kernel();
[[nodiscard]] kernel<route_backward_parameters> route_backward_reference_kernel();
[[nodiscard]] kernel<route_backward_parameters> route_backward_scored_kernel();

/// Experts whose scores fit the shared memory of a CTA.
inline constexpr index_t route_scored_experts = 1024;
/// Scores that a warp keeps, in whole float4.
[[nodiscard]] constexpr index_t kept_scores(index_t experts) { return ceil_div(experts, 4) * 4; }
/// Words that a warp of route keeps: scores and ranks, ranks of groups, and its choices.
[[nodiscard]] constexpr index_t route_kept(index_t experts, index_t groups, index_t top_k) {
  return 2 * kept_scores(experts) + kept_scores(groups + top_k);
}

}  // namespace moe64::cuda
