#include "cpu/route.hpp"

#include "core/exponential.hpp"
#include "core/fail.hpp"
#include "cpu/operations.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"

#include <atomic>
#include <cmath>
#include <limits>

namespace moe64::cpu {
namespace {

/// A candidate of a choice: larger keys first, NaN below everything, ties to the lower id.
struct candidate {
  float key;
  index_t id;

  [[nodiscard]] bool before(candidate const& other) const noexcept {
    bool const nan = std::isnan(key);
    bool const other_nan = std::isnan(other.key);
    if (nan != other_nan) return other_nan;
    if (!nan && key != other.key) return key > other.key;
    return id < other.id;
  }
};

/// The scores of one token. They are computed where they are needed instead of being stored, so
/// that routing needs no memory whatever the number of experts.
class token_scores {
 public:
  token_scores(tensor_view const& logits, scoring score, index_t token)
      : logits_(logits), score_(score), token_(token) {
    if (score != scoring::softmax) return;
    largest_ = -std::numeric_limits<float>::infinity();
    for (index_t e = 0; e < experts(); ++e) largest_ = std::fmax(largest_, logit(e));
    for (index_t e = 0; e < experts(); ++e) sum_ += exp_f32(logit(e) - largest_);
  }

  [[nodiscard]] index_t experts() const { return logits_.extent[1]; }
  [[nodiscard]] float logit(index_t e) const { return load_number(logits_, token_, e); }
  [[nodiscard]] float operator()(index_t e) const {
    switch (score_) {
      case scoring::softmax:
        return exp_f32(logit(e) - largest_) / sum_;
      case scoring::softmax_of_selected:
        return logit(e);
      case scoring::sigmoid:
        return 1.0F / (1.0F + exp_f32(-logit(e)));
    }
    return 0.0F;
  }

 private:
  tensor_view const& logits_;
  scoring score_;
  index_t token_;
  float largest_ = 0.0F;
  float sum_ = 0.0F;
};

/// The choice of experts for one token, one after the other in the order of candidate::before.
class chooser {
 public:
  chooser(route_args const& args, token_scores const& scores)
      : args_(args), scores_(scores), group_size_(scores.experts() / args.options.expert_groups) {
    if (args.options.groups_kept == args.options.expert_groups) return;
    for (index_t kept = 0; kept < args.options.groups_kept; ++kept) {
      candidate best = nothing();
      for (index_t g = 0; g < args.options.expert_groups; ++g) {
        candidate const group = {group_key(g), g};
        bool const after = kept == 0 || last_group_.before(group);
        if (after && (best.id < 0 || group.before(best))) best = group;
      }
      last_group_ = best;
    }
    limited_ = true;
  }

  /// The best eligible expert that comes after `previous` (none yet: id -1).
  [[nodiscard]] candidate next(candidate const& previous) const {
    candidate best = nothing();
    for (index_t g = 0; g < args_.options.expert_groups; ++g) {
      if (limited_ && last_group_.before({group_key(g), g})) continue;
      for (index_t e = g * group_size_; e < (g + 1) * group_size_; ++e) {
        candidate const expert = {key(e), e};
        bool const after = previous.id < 0 || previous.before(expert);
        if (after && (best.id < 0 || expert.before(best))) best = expert;
      }
    }
    return best;
  }

  static candidate nothing() { return {0.0F, -1}; }

 private:
  [[nodiscard]] float key(index_t e) const {
    float const score = scores_(e);
    return args_.selection_bias.present() ? score + load_number(args_.selection_bias, e) : score;
  }

  [[nodiscard]] float group_key(index_t g) const {
    candidate first = nothing();
    candidate second = nothing();
    for (index_t e = g * group_size_; e < (g + 1) * group_size_; ++e) {
      candidate const expert = {key(e), e};
      if (first.id < 0 || expert.before(first)) {
        second = first;
        first = expert;
      } else if (second.id < 0 || expert.before(second)) {
        second = expert;
      }
    }
    bool const pair = args_.options.group_by == group_score::top2_sum && second.id >= 0;
    return pair ? first.key + second.key : first.key;
  }

  route_args const& args_;
  token_scores const& scores_;
  index_t group_size_;
  bool limited_ = false;
  candidate last_group_ = nothing();  // the worst group that is kept
};

/// A selection bias can put a small logit first.
float largest_chosen(route_args const& args, token_scores const& scores, index_t token) {
  float largest = -std::numeric_limits<float>::infinity();
  for (index_t k = 0; k < args.expert_ids.extent[1]; ++k) {
    largest = std::fmax(largest, scores.logit(load_index(args.expert_ids, token, k)));
  }
  return largest;
}

void route_reference(route_args const& args, stream where) {
  index_t const tokens = args.logits.extent[0];
  index_t const top_k = args.expert_ids.extent[1];
  auto const weights = as<float, 2>(args.weights);
  if (args.expert_ids.type == dtype::int32) {
    static_cast<void>(narrow<std::int32_t>(args.logits.extent[1]));  // before anything is written
  }
  parallel_for(where, tokens, [&](index_t token) {
    token_scores const scores(args.logits, args.options.score, token);
    chooser const choice(args, scores);
    candidate chosen = chooser::nothing();
    for (index_t k = 0; k < top_k; ++k) {
      chosen = choice.next(chosen);
      store_id(args.expert_ids, token, k, chosen.id);
      weights(token, k) = scores(chosen.id);
    }
    finish_weights(args, token, largest_chosen(args, scores, token));
  });
}

/// The gradient of the loss with respect to the logits of one token.
class token_gradient {
 public:
  token_gradient(route_backward_args const& args, index_t token)
      : args_(args), token_(token), scores_(args.logits, args.options.score, token) {
    bool const selected = args.options.score == scoring::softmax_of_selected;
    for (index_t k = 0; selected && k < top_k(); ++k) {
      if (!skipped(k)) largest_ = std::fmax(largest_, scores_.logit(id(k)));
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

  [[nodiscard]] float at(index_t e) const {
    float gradient = 0.0F;
    for (index_t k = 0; k < top_k(); ++k) {
      if (skipped(k) || id(k) != e) continue;
      float const raw_score = raw(k);
      gradient += args_.options.score == scoring::sigmoid
                      ? d_raw(k) * raw_score * (1.0F - raw_score)
                      : d_raw(k) * raw_score;
    }
    // Every logit takes part in the softmax over all experts, also of those that were not chosen.
    if (args_.options.score == scoring::softmax) gradient -= scores_(e) * softmax_dot_;
    return gradient;
  }

 private:
  [[nodiscard]] index_t top_k() const { return args_.expert_ids.extent[1]; }
  [[nodiscard]] index_t id(index_t k) const { return load_index(args_.expert_ids, token_, k); }
  [[nodiscard]] bool skipped(index_t k) const { return is_sentinel(id(k), scores_.experts()); }
  /// Score before normalising; exp of the logit when the softmax is over the chosen.
  [[nodiscard]] float raw(index_t k) const {
    if (args_.options.score != scoring::softmax_of_selected) return scores_(id(k));
    return exp_f32(scores_.logit(id(k)) - largest_);
  }
  [[nodiscard]] float upstream(index_t k) const {
    return load_number(args_.d_weights, token_, k) * args_.options.scaling;
  }
  [[nodiscard]] float d_raw(index_t k) const {
    bool const divided =
        args_.options.renormalize || args_.options.score == scoring::softmax_of_selected;
    return divided ? (upstream(k) - weighted_ / sum_) / sum_ : upstream(k);
  }

  route_backward_args const& args_;
  index_t token_;
  token_scores scores_;
  float largest_ = -std::numeric_limits<float>::infinity();
  float sum_ = 0.0F;          // of the raw scores of the chosen
  float weighted_ = 0.0F;     // sum of upstream * raw
  float softmax_dot_ = 0.0F;  // sum of raw * d_raw
};

void route_backward_reference(route_backward_args const& args, stream where) {
  index_t const tokens = args.logits.extent[0];
  index_t const experts = args.logits.extent[1];
  refuse_invalid(args, where);
  parallel_for(where, tokens, [&](index_t token) {
    token_gradient const gradient(args, token);
    for (index_t e = 0; e < experts; ++e) store_number(args.d_logits, gradient.at(e), token, e);
  });
}

constexpr implementation<route_args> routers[] = {
    {"scored_once", fits_scored, route_scored},
    {"reference", any_call<route_args>, route_reference},
};
constexpr implementation<route_backward_args> backward_routers[] = {
    {"scored_once", fits_scored, route_backward_scored},
    {"reference", any_call<route_backward_args>, route_backward_reference},
};

}  // namespace

void store_id(tensor_view const& ids, index_t i, index_t j, index_t id) {
  if (ids.type == dtype::int32) {
    as<std::int32_t, 2>(ids)(i, j) = narrow<std::int32_t>(id);
  } else {
    as<std::int64_t, 2>(ids)(i, j) = id;
  }
}

void finish_weights(route_args const& args, index_t token, float largest_logit) {
  auto const weights = as<float, 2>(args.weights);
  index_t const top_k = args.weights.extent[1];
  float sum = 0.0F;
  for (index_t k = 0; k < top_k; ++k) {
    float& weight = weights(token, k);
    if (args.options.score == scoring::softmax_of_selected) {
      weight = exp_f32(weight - largest_logit);
    }
    sum += weight;
  }
  bool const divide =
      args.options.renormalize || args.options.score == scoring::softmax_of_selected;
  for (index_t k = 0; k < top_k; ++k) {
    float& weight = weights(token, k);
    if (divide) weight /= sum + renormalize_epsilon;
    weight *= args.options.scaling;
  }
}

void refuse_invalid(route_backward_args const& args, stream where) {
  index_t const experts = args.logits.extent[1];
  index_t const top_k = args.expert_ids.extent[1];
  constexpr index_t none = std::numeric_limits<index_t>::max();
  std::atomic<index_t> first_slot{none};
  parallel_ranges(where, args.logits.extent[0], top_k * index_t{8},
                  [&](index_t begin, index_t end) {
                    for (index_t slot = begin * top_k; slot < end * top_k; ++slot) {
                      index_t const id = load_index(args.expert_ids, slot / top_k, slot % top_k);
                      if (id >= -1 && id <= experts) continue;
                      index_t known = first_slot.load();
                      while (slot < known && !first_slot.compare_exchange_weak(known, slot)) {
                      }
                      return;
                    }
                  });
  if (first_slot == none) return;
  index_t const token = first_slot / top_k;
  index_t const k = first_slot % top_k;
  fail(errc::invalid_expert,
       "[route_backward] expert_ids holds {} at token {}, k {}: not in [0, {}), -1 or {}",
       load_index(args.expert_ids, token, k), token, k, experts, experts);
}

implementation_list<route_args> route_list() { return routers; }
implementation_list<route_backward_args> route_backward_list() { return backward_routers; }

}  // namespace moe64::cpu
