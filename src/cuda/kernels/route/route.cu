#include "cuda/kernels/route/scores.cuh"

namespace moe64::cuda {
namespace {

/// A candidate of a choice: larger keys first, NaN below all others, ties to the lower id; an id
/// below 0 is none, and comes last.
struct candidate {
  float key = 0.0F;
  index_t id = -1;

  [[nodiscard]] __device__ bool before(candidate const& other) const {
    if (id < 0 || other.id < 0) return id >= 0;
    bool const nan = isnan(key);
    bool const other_nan = isnan(other.key);
    if (nan != other_nan) return other_nan;
    if (!nan && key != other.key) return key > other.key;
    return id < other.id;
  }
  [[nodiscard]] __device__ candidate of_lane_xor(int distance) const {
    return {__shfl_xor_sync(all_lanes, key, distance), __shfl_xor_sync(all_lanes, id, distance)};
  }
};

__device__ candidate best_of_warp(candidate mine) {
  for (int distance = 16; distance > 0; distance /= 2) {
    candidate const other = mine.of_lane_xor(distance);
    if (other.before(mine)) mine = other;
  }
  return mine;
}

/// The two best candidates of a set.
struct best_two {
  candidate first, second;

  __device__ void add(candidate const& other) {
    if (other.before(first)) {
      second = first;
      first = other;
    } else if (other.before(second)) {
      second = other;
    }
  }
  __device__ void add_warp() {
    for (int distance = 16; distance > 0; distance /= 2) {
      best_two const other = {first.of_lane_xor(distance), second.of_lane_xor(distance)};
      add(other.first);
      add(other.second);
    }
  }
};

/// Selects the experts of one token, one after the other.
class chooser {
 public:
  __device__ chooser(route_parameters const& p, token_scores<false> const& scores)
      : p_(p),
        scores_(scores),
        groups_(p.options.expert_groups),
        group_size_(scores.experts() / p.options.expert_groups),
        limited_(p.options.groups_kept < p.options.expert_groups) {
    if (!limited_) return;
    candidate last;
    for (index_t kept = 0; kept < p.options.groups_kept; ++kept) {
      candidate best;
      for (index_t g = 0; g < groups_; ++g) {
        candidate const group = {group_key(g), g};
        if ((kept == 0 || last.before(group)) && group.before(best)) best = group;
      }
      last = best;
    }
    last_group_ = last;
  }

  /// The best eligible expert that comes after `previous` (none yet: no id).
  [[nodiscard]] __device__ candidate next(candidate const& previous) const {
    candidate best;
    if (!limited_) {
      find(previous, 0, scores_.experts(), best);
    } else {
      for (index_t g = 0; g < groups_; ++g) {
        if (last_group_.before({group_key(g), g})) continue;
        find(previous, g * group_size_, (g + 1) * group_size_, best);
      }
    }
    return best_of_warp(best);
  }

 private:
  [[nodiscard]] __device__ float key(index_t e) const {
    float const score = scores_(e);
    return p_.selection_bias.present() ? score + element<float>(p_.selection_bias, e) : score;
  }

  __device__ void find(candidate const& previous, index_t begin, index_t end,
                       candidate& best) const {
    for (index_t e = begin + lane_id(); e < end; e += 32) {
      candidate const expert = {key(e), e};
      if ((previous.id < 0 || previous.before(expert)) && expert.before(best)) best = expert;
    }
  }

  [[nodiscard]] __device__ float group_key(index_t g) const {
    best_two best;
    for (index_t e = g * group_size_ + lane_id(); e < (g + 1) * group_size_; e += 32) {
      best.add({key(e), e});
    }
    best.add_warp();
    bool const pair = p_.options.group_by == group_score::top2_sum && best.second.id >= 0;
    return pair ? best.first.key + best.second.key : best.first.key;
  }

  route_parameters const& p_;
  token_scores<false> const& scores_;
  index_t groups_;
  index_t group_size_;
  bool limited_;
  candidate last_group_;  // the worst group that is kept
};

/// The scores of the selected experts, in p.weights, become weights: by the lane that wrote them.
__device__ void finish_weights(route_parameters const& p, index_t token, float largest) {
  row_view const weights = row_of(p.weights, token);
  index_t const top_k = p.weights.extent[1];
  bool const selected = p.options.score == scoring::softmax_of_selected;
  float sum = 0.0F;
  for (index_t k = 0; k < top_k; ++k) {
    float weight = load_number(weights, k);
    if (selected) {
      weight = exp_f32(weight - largest);
      store_float(weights, k, weight);
    }
    sum += weight;
  }
  for (index_t k = 0; k < top_k; ++k) {
    float weight = load_number(weights, k);
    if (p.options.renormalize || selected) weight /= sum + renormalize_epsilon;
    store_float(weights, k, weight * p.options.scaling);
  }
}

/// Computes: expert_ids and weights of each token.
/// Grid: a warp per token, grid-stride beyond.
/// Threads: route_warps warps, independent of each other.
/// Shared memory: none: every score is computed whenever it is needed.
/// Limits: none; any strides and types.
__global__ void __launch_bounds__(route_warps * 32) route_tokens(route_parameters const p) {
  for_each_token(p.logits.extent[0], [&](index_t token) {
    token_scores<false> const scores(p.logits, p.options.score, token, nullptr);
    chooser const choice(p, scores);
    candidate chosen;
    float largest = -std::numeric_limits<float>::infinity();
    for (index_t k = 0; k < p.expert_ids.extent[1]; ++k) {
      chosen = choice.next(chosen);
      if (lane_id() != 0) continue;
      float const score = scores(chosen.id);
      store_id(p.expert_ids, token, k, chosen.id);
      store_float(row_of(p.weights, token), k, score);
      largest = fmaxf(largest, score);  // the logit, where finish_weights needs it
    }
    if (lane_id() == 0) finish_weights(p, token, largest);
  });
}

// ---- backward ----------------------------------------------------------------------------------

/// The gradient of the loss with respect to the logits of one token.
template <bool Kept>
class token_gradient {
 public:
  __device__ token_gradient(route_backward_parameters const& p, index_t token,
                            token_scores<Kept> const& scores)
      : p_(p), token_(token), scores_(scores) {
    bool const selected = p.options.score == scoring::softmax_of_selected;
    for (index_t k = 0; selected && k < top_k(); ++k) {
      if (!skipped(k)) largest_ = fmaxf(largest_, scores_.logit(id(k)));
    }
    for (index_t k = 0; k < top_k(); ++k) {
      if (!skipped(k)) sum_ += raw(k);
    }
    sum_ += renormalize_epsilon;
    for (index_t k = 0; k < top_k(); ++k) {
      if (!skipped(k)) weighted_ += upstream(k) * raw(k);
    }
    for (index_t k = 0; k < top_k(); ++k) {
      if (!skipped(k)) softmax_dot_ += raw(k) * d_raw(k);
    }
  }

  [[nodiscard]] __device__ float at(index_t e) const {
    float gradient = 0.0F;
    for (index_t k = 0; k < top_k(); ++k) {
      if (id(k) != e) continue;
      float const raw_score = raw(k);
      gradient += p_.options.score == scoring::sigmoid ? d_raw(k) * raw_score * (1.0F - raw_score)
                                                       : d_raw(k) * raw_score;
    }
    // The softmax over all experts depends on every logit, also of those that were not selected.
    if (p_.options.score == scoring::softmax) gradient -= scores_(e) * softmax_dot_;
    return gradient;
  }

 private:
  [[nodiscard]] __device__ index_t top_k() const { return p_.expert_ids.extent[1]; }
  [[nodiscard]] __device__ index_t id(index_t k) const { return load_id(p_.expert_ids, token_, k); }
  /// Sentinels, and ids that no expert has: they cannot be reported here, and must not be read.
  [[nodiscard]] __device__ bool skipped(index_t k) const {
    return id(k) < 0 || id(k) >= scores_.experts();
  }
  /// Score before normalising; exp of the logit when the softmax is over the selected experts.
  [[nodiscard]] __device__ float raw(index_t k) const {
    if (p_.options.score != scoring::softmax_of_selected) return scores_(id(k));
    return exp_f32(scores_.logit(id(k)) - largest_);
  }
  [[nodiscard]] __device__ float upstream(index_t k) const {
    return load_number(row_of(p_.d_weights, token_), k) * p_.options.scaling;
  }
  [[nodiscard]] __device__ float d_raw(index_t k) const {
    bool const divided = p_.options.renormalize || p_.options.score == scoring::softmax_of_selected;
    return divided ? (upstream(k) - weighted_ / sum_) / sum_ : upstream(k);
  }

  route_backward_parameters const& p_;
  index_t token_;
  token_scores<Kept> const& scores_;
  float largest_ = -std::numeric_limits<float>::infinity();
  float sum_ = 0.0F;          // of the raw scores of the selected
  float weighted_ = 0.0F;     // sum of upstream * raw
  float softmax_dot_ = 0.0F;  // sum of raw * d_raw
};

/// Computes: d_logits of each token.
/// Grid: a warp per token, grid-stride beyond.
/// Threads: route_warps warps, independent of each other.
/// Shared memory: `Kept`: the scores of a token per warp; otherwise none.
/// Limits: `Kept`: at most route_scored_experts; any strides and types.
template <bool Kept>
__global__ void __launch_bounds__(route_warps * 32)
    route_backward_tokens(route_backward_parameters const p) {
  index_t const experts = p.logits.extent[1];
  float* const kept = warp_memory(kept_scores(experts));
  for_each_token(p.logits.extent[0], [&](index_t token) {
    token_scores<Kept> const scores(p.logits, p.options.score, token, kept);
    token_gradient<Kept> const gradient(p, token, scores);
    row_view const d_logits = row_of(p.d_logits, token);
    for (index_t e = lane_id(); e < experts; e += 32) store_float(d_logits, e, gradient.at(e));
    __syncwarp();
  });
}

}  // namespace

kernel<route_parameters> route_reference_kernel() { return {"route_reference", route_tokens}; }
kernel<route_backward_parameters> route_backward_reference_kernel() {
  return {"route_backward_reference", route_backward_tokens<false>};
}
kernel<route_backward_parameters> route_backward_scored_kernel() {
  return {"route_backward_scored", route_backward_tokens<true>};
}

}  // namespace moe64::cuda
