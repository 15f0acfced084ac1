#pragma once

#include "moe64/error.hpp"
#include "moe64/ops.hpp"

namespace moe64::cpu {

/// Added to the sum that weights are divided by.
inline constexpr float renormalize_epsilon = 1e-20F;

/// Ids that stand for no expert.
[[nodiscard]] constexpr bool is_sentinel(index_t id, index_t experts) noexcept {
  return id == -1 || id == experts;
}

void store_id(tensor_view const& ids, index_t i, index_t j, index_t id);

/// Scores of the chosen of one token, in args.weights, become weights: normalised and scaled in
/// place. `largest_logit` is that of the chosen.
void finish_weights(route_args const& args, index_t token, float largest_logit);

/// errc::invalid_expert with the first id that is neither an expert nor a sentinel.
void refuse_invalid(route_backward_args const& args, stream where);

/// src/cpu/route/scored.cpp: each score computed once, for as many experts as its buffers hold.
[[nodiscard]] support fits_scored(route_args const& args);
[[nodiscard]] support fits_scored(route_backward_args const& args);
void route_scored(route_args const& args, stream where);
void route_backward_scored(route_backward_args const& args, stream where);

}  // namespace moe64::cpu
