#include "core/exponential.hpp"
#include "core/fail.hpp"
#include "cpu/route.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

/// Routing that computes each score once and keeps it on the stack. Bit for bit what the reference
/// computes: the same calls of exp, the same order of additions.
namespace moe64::cpu {
namespace {

/// Experts, and choices of a token, that the buffers hold.
constexpr index_t most_experts = 2048;

/// What a token costs, as bytes that a task would move in the time: mostly an exp per expert.
index_t token_cost(index_t experts) { return experts * index_t{16}; }

/// A key and its id as one integer that ranks as candidates do: larger keys first, NaN below
/// everything, both zeros alike, ties to the lower id.
using ranked = std::int64_t;

ranked rank(float key, index_t id) noexcept {
  auto const bits = std::bit_cast<std::int32_t>(key + 0.0F);
  std::int32_t const ordered = bits ^ ((bits >> 31) & std::numeric_limits<std::int32_t>::max());
  index_t const high = key != key ? std::numeric_limits<std::int32_t>::min() : ordered;
  return high * (ranked{1} << 32) + (most_experts - id);
}
index_t id_of(ranked candidate) noexcept { return most_experts - (candidate & 0xffffffff); }

/// Candidates that are taken best first. The best of each block is kept at hand, so that taking one
/// looks at one block and not at all; nothing branches on the keys, which no predictor could learn.
class candidates {
 public:
  static constexpr ranked taken = std::numeric_limits<ranked>::min();

  [[nodiscard]] ranked& operator[](index_t i) { return all_[i]; }

  /// After the first `count` have been set.
  void prepare(index_t count) {
    blocks_ = ceil_div(count, block);
    std::fill(all_ + count, all_ + blocks_ * block, taken);
    for (index_t b = 0; b < blocks_; ++b) best_[b] = best_of(all_ + b * block, block);
  }

  index_t take() {
    index_t const id = id_of(best_of(best_, blocks_));
    index_t const b = id / block;
    all_[id] = taken;
    best_[b] = best_of(all_ + b * block, block);
    return id;
  }

 private:
  static constexpr index_t block = 16;

  static ranked best_of(ranked const* list, index_t count) {
    ranked best = taken;
    for (index_t i = 0; i < count; ++i) best = std::max(best, list[i]);
    return best;
  }

  index_t blocks_ = 0;
  ranked all_[most_experts];
  ranked best_[most_experts / block];
};

float sigmoid(float logit) { return 1.0F / (1.0F + exp_f32(-logit)); }

float largest_of(float const* values, index_t count) {
  // Which of two zeros is found makes no difference to what exp sees.
  constexpr index_t lanes = 16;
  float best[lanes];
  std::fill_n(best, lanes, -std::numeric_limits<float>::infinity());
  index_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (index_t lane = 0; lane < lanes; ++lane) {
      float const value = values[i + lane];
      best[lane] = value > best[lane] ? value : best[lane];  // NaN never is
    }
  }
  for (; i < count; ++i) best[0] = values[i] > best[0] ? values[i] : best[0];
  return *std::max_element(best, best + lanes);
}

/// The scores of one token.
void score(tensor_view const& logits, scoring kind, index_t token, float* scores) {
  index_t const experts = logits.extent[1];
  load_row(row_of(logits, token), 0, experts, scores);
  if (kind == scoring::sigmoid) {
    for (index_t e = 0; e < experts; ++e) scores[e] = sigmoid(scores[e]);
  } else if (kind == scoring::softmax) {
    float const largest = largest_of(scores, experts);
    for (index_t e = 0; e < experts; ++e) scores[e] = exp_f32(scores[e] - largest);
    float sum = 0.0F;
    for (index_t e = 0; e < experts; ++e) sum += scores[e];
    for (index_t e = 0; e < experts; ++e) scores[e] /= sum;
  }
}

class router {
 public:
  explicit router(route_args const& args)
      : args_(args),
        experts_(args.logits.extent[1]),
        top_k_(args.expert_ids.extent[1]),
        groups_(args.options.expert_groups),
        biased_(args.selection_bias.present()) {
    if (!biased_) return;
    auto const bias = as<float, 1>(args.selection_bias);
    for (index_t e = 0; e < experts_; ++e) bias_[e] = bias(e);
  }

  void run(index_t token) {
    score(args_.logits, args_.options.score, token, scores_);
    for (index_t e = 0; e < experts_; ++e) eligible_[e] = rank(key(e), e);
    if (args_.options.groups_kept < groups_) drop_groups();
    eligible_.prepare(experts_);
    auto const weights = as<float, 2>(args_.weights);
    float largest = -std::numeric_limits<float>::infinity();
    for (index_t k = 0; k < top_k_; ++k) {
      index_t const id = eligible_.take();
      store_id(args_.expert_ids, token, k, id);
      weights(token, k) = scores_[id];
      largest = std::fmax(largest, scores_[id]);  // the logit, where finish_weights looks at it
    }
    finish_weights(args_, token, largest);
  }

 private:
  [[nodiscard]] float key(index_t e) const { return biased_ ? scores_[e] + bias_[e] : scores_[e]; }

  void drop_groups() {
    index_t const size = experts_ / groups_;
    for (index_t g = 0; g < groups_; ++g) best_groups_[g] = rank(group_key(g * size, size), g);
    best_groups_.prepare(groups_);
    for (index_t kept = 0; kept < args_.options.groups_kept; ++kept) best_groups_.take();
    for (index_t g = 0; g < groups_; ++g) {
      if (best_groups_[g] == candidates::taken) continue;
      for (index_t e = g * size; e < (g + 1) * size; ++e) eligible_[e] = candidates::taken;
    }
  }

  [[nodiscard]] float group_key(index_t begin, index_t size) {
    ranked first = candidates::taken;
    ranked second = candidates::taken;
    for (index_t e = begin; e < begin + size; ++e) {
      second = std::max(second, std::min(first, eligible_[e]));
      first = std::max(first, eligible_[e]);
    }
    bool const pair = args_.options.group_by == group_score::top2_sum && size > 1;
    return pair ? key(id_of(first)) + key(id_of(second)) : key(id_of(first));
  }

  route_args const& args_;
  index_t experts_;
  index_t top_k_;
  index_t groups_;
  bool biased_;
  float bias_[most_experts];
  float scores_[most_experts];
  candidates eligible_;
  candidates best_groups_;
};

/// The gradient of one token's logits.
class backward_router {
 public:
  explicit backward_router(route_backward_args const& args)
      : args_(args), experts_(args.logits.extent[1]), top_k_(args.expert_ids.extent[1]) {}

  void run(index_t token) {
    scoring const kind = args_.options.score;
    if (kind == scoring::softmax) score(args_.logits, kind, token, scores_);
    load_chosen(token);
    bool const divided = args_.options.renormalize || kind == scoring::softmax_of_selected;
    float sum = 0.0F;
    float weighted = 0.0F;
    for (index_t i = 0; i < chosen_; ++i) sum += raw_[i];
    sum += renormalize_epsilon;
    for (index_t i = 0; i < chosen_; ++i) weighted += upstream_[i] * raw_[i];
    std::fill_n(gradient_, experts_, 0.0F);
    float softmax_dot = 0.0F;
    for (index_t i = 0; i < chosen_; ++i) {
      float const d_raw = divided ? (upstream_[i] - weighted / sum) / sum : upstream_[i];
      softmax_dot += raw_[i] * d_raw;
      gradient_[ids_[i]] +=
          kind == scoring::sigmoid ? d_raw * raw_[i] * (1.0F - raw_[i]) : d_raw * raw_[i];
    }
    if (kind == scoring::softmax) {
      for (index_t e = 0; e < experts_; ++e) gradient_[e] -= scores_[e] * softmax_dot;
    }
    store_row(row_of(args_.d_logits, token), 0, experts_, gradient_);
  }

 private:
  /// Id, score before normalising and upstream gradient of every choice that is an expert.
  void load_chosen(index_t token) {
    auto const d_weights = as<float, 2>(args_.d_weights);
    chosen_ = 0;
    for (index_t k = 0; k < top_k_; ++k) {
      index_t const id = load_index(args_.expert_ids, token, k);
      if (is_sentinel(id, experts_)) continue;
      ids_[chosen_] = id;
      upstream_[chosen_++] = d_weights(token, k) * args_.options.scaling;
    }
    float largest = -std::numeric_limits<float>::infinity();
    for (index_t i = 0; i < chosen_; ++i) {
      bool const scored = args_.options.score == scoring::softmax;
      raw_[i] = scored ? scores_[ids_[i]] : load_number(args_.logits, token, ids_[i]);
      largest = std::fmax(largest, raw_[i]);
    }
    if (args_.options.score == scoring::sigmoid) {
      for (index_t i = 0; i < chosen_; ++i) raw_[i] = sigmoid(raw_[i]);
    } else if (args_.options.score == scoring::softmax_of_selected) {
      for (index_t i = 0; i < chosen_; ++i) raw_[i] = exp_f32(raw_[i] - largest);
    }
  }

  route_backward_args const& args_;
  index_t experts_;
  index_t top_k_;
  index_t chosen_ = 0;
  index_t ids_[most_experts];
  float raw_[most_experts];
  float upstream_[most_experts];
  float scores_[most_experts];
  float gradient_[most_experts];
};

template <class Router, class Args>
void run_tokens(Args const& args, stream where) {
  index_t const cost = token_cost(args.logits.extent[1]);
  parallel_ranges(where, args.logits.extent[0], cost, [&](index_t begin, index_t end) {
    Router each(args);
    for (index_t token = begin; token < end; ++token) each.run(token);
  });
}

template <class Args>
support fits(Args const& args) {
  index_t const experts = args.logits.extent[1];
  index_t const top_k = args.expert_ids.extent[1];
  if (experts <= most_experts && top_k <= most_experts) return support::yes();
  return support::no(fmt::format("{} experts and {} choices: its buffers hold {} of each", experts,
                                 top_k, most_experts));
}

}  // namespace

support fits_scored(route_args const& args) { return fits(args); }
support fits_scored(route_backward_args const& args) { return fits(args); }

void route_scored(route_args const& args, stream where) { run_tokens<router>(args, where); }

void route_backward_scored(route_backward_args const& args, stream where) {
  refuse_invalid(args, where);
  run_tokens<backward_router>(args, where);
}

}  // namespace moe64::cpu
