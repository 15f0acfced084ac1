#pragma once

#include "cuda/runtime/kernel.hpp"
#include "moe64/ops.hpp"

namespace moe64::cuda {

struct route_parameters {
  tensor_view logits, selection_bias, expert_ids, weights;
  route_options options;
};

struct route_backward_parameters {
  tensor_view logits, expert_ids, d_weights, d_logits;
  route_options options;
};

/// One warp per token. Both compute every score when they need it, in any number of experts; or
/// once, into shared memory.
inline constexpr int route_warps = 4;
[[nodiscard]] kernel<route_parameters> route_reference_kernel();
[[nodiscard]] kernel<route_parameters> route_scored_kernel();
[[nodiscard]] kernel<route_backward_parameters> route_backward_reference_kernel();
[[nodiscard]] kernel<route_backward_parameters> route_backward_scored_kernel();

/// Experts whose scores, and groups whose keys, fit the shared memory of a block.
inline constexpr index_t route_scored_experts = 1024;
/// Scores that a warp keeps: in whole vectors of four.
[[nodiscard]] constexpr index_t kept_scores(index_t experts) { return ceil_div(experts, 4) * 4; }
/// Elements that a warp of route keeps: scores and ranks, ranks of groups, and its choices.
[[nodiscard]] constexpr index_t route_kept(index_t experts, index_t groups, index_t top_k) {
  return 2 * kept_scores(experts) + kept_scores(groups + top_k);
}

}  // namespace moe64::cuda
