#include "moe64/error.hpp"
#include "oracle/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>

namespace moe64::oracle {
namespace {

constexpr double tiny = 1e-20;  // added to the sum that renormalising divides by

/// NaN ranks below everything. Used with stable sorts, so that equal keys stay in the order of
/// their ids.
bool ranks_before(double left, double right) {
  if (std::isnan(left)) return false;
  return std::isnan(right) || left > right;
}

std::vector<std::size_t> best_first(std::vector<double> const& keys) {
  std::vector<std::size_t> order(keys.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return ranks_before(keys[left], keys[right]);
  });
  return order;
}

std::vector<double> softmax(std::vector<double> const& logits) {
  double largest = -std::numeric_limits<double>::infinity();
  for (double const logit : logits) largest = std::max(largest, logit);
  std::vector<double> result;
  for (double const logit : logits) result.push_back(std::exp(logit - largest));
  double const sum = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& value : result) value /= sum;
  return result;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

std::vector<double> row_of(tensor_view const& matrix, index_t row) {
  std::vector<double> result;
  for (index_t col = 0; col < matrix.extent[1]; ++col) result.push_back(at(matrix, row, col));
  return result;
}

/// What experts are compared by before the selection bias: the score, or the logit where scoring
/// comes later.
std::vector<double> scores_of(std::vector<double> const& logits, scoring score) {
  if (score == scoring::softmax) return softmax(logits);
  std::vector<double> result = logits;
  if (score == scoring::sigmoid)
    std::transform(result.begin(), result.end(), result.begin(), sigmoid);
  return result;
}

/// [experts]: true for the experts of the groups that are kept.
std::vector<bool> eligible_experts(std::vector<double> const& keys, route_options const& options) {
  auto const groups = static_cast<std::size_t>(options.expert_groups);
  std::size_t const group_size = keys.size() / groups;
  std::vector<double> group_keys;
  for (std::size_t group = 0; group < groups; ++group) {
    std::vector<double> members;
    for (std::size_t i = 0; i < group_size; ++i) members.push_back(keys[group * group_size + i]);
    std::vector<std::size_t> const order = best_first(members);
    bool const two = options.group_by == group_score::top2_sum && group_size > 1;
    group_keys.push_back(two ? members[order[0]] + members[order[1]] : members[order[0]]);
  }
  std::vector<std::size_t> const order = best_first(group_keys);
  std::vector<bool> result(keys.size(), false);
  auto const kept = static_cast<std::size_t>(std::min(options.groups_kept, options.expert_groups));
  for (std::size_t place = 0; place < kept; ++place) {
    for (std::size_t i = 0; i < group_size; ++i) result[order[place] * group_size + i] = true;
  }
  return result;
}

std::vector<double> pick(std::vector<double> const& values, std::vector<std::size_t> const& ids) {
  std::vector<double> result;
  for (std::size_t const id : ids) result.push_back(values[id]);
  return result;
}

/// Weights of the chosen experts before renormalising and scaling.
std::vector<double> chosen_scores(std::vector<double> const& logits,
                                  std::vector<std::size_t> const& ids, scoring score) {
  if (score == scoring::softmax_of_selected) return softmax(pick(logits, ids));
  return pick(scores_of(logits, score), ids);
}

/// Gradient of the chosen scores from that of the final weights.
std::vector<double> through_renormalize(std::vector<double> const& scores,
                                        std::vector<double> const& d_weights,
                                        route_options const& options) {
  double const scaling = options.scaling;
  double const sum = std::accumulate(scores.begin(), scores.end(), 0.0) + tiny;
  double const dot = std::inner_product(scores.begin(), scores.end(), d_weights.begin(), 0.0);
  std::vector<double> result;
  for (double const d_weight : d_weights) {
    result.push_back(scaling *
                     (options.renormalize ? d_weight / sum - dot / (sum * sum) : d_weight));
  }
  return result;
}

void check_top_k(index_t top_k, std::vector<bool> const& eligible) {
  auto const count = std::count(eligible.begin(), eligible.end(), true);
  if (top_k <= count) return;
  throw error(errc::invalid_argument, "[oracle route] top_k (" + std::to_string(top_k) +
                                          ") is more than the eligible experts (" +
                                          std::to_string(count) + ")");
}

}  // namespace

routed route(tensor_view const& logits, tensor_view const& selection_bias,
             route_options const& options, index_t top_k) {
  routed result;
  for (index_t token = 0; token < logits.extent[0]; ++token) {
    std::vector<double> const token_logits = row_of(logits, token);
    std::vector<double> keys = scores_of(token_logits, options.score);
    for (index_t expert = 0; selection_bias.present() && expert < logits.extent[1]; ++expert) {
      keys[static_cast<std::size_t>(expert)] += at(selection_bias, expert);
    }
    std::vector<bool> const eligible = eligible_experts(keys, options);
    check_top_k(top_k, eligible);
    std::vector<std::size_t> chosen;
    for (std::size_t const id : best_first(keys)) {
      if (eligible[id] && std::ssize(chosen) < top_k) chosen.push_back(id);
    }
    std::vector<double> const scores = chosen_scores(token_logits, chosen, options.score);
    double const sum = std::accumulate(scores.begin(), scores.end(), 0.0) + tiny;
    for (std::size_t k = 0; k < chosen.size(); ++k) {
      result.ids.push_back(static_cast<index_t>(chosen[k]));
      result.weights.push_back((options.renormalize ? scores[k] / sum : scores[k]) *
                               double{options.scaling});
    }
  }
  return result;
}

std::vector<double> route_backward(tensor_view const& logits, route_options const& options,
                                   tensor_view const& expert_ids, tensor_view const& d_weights) {
  auto const experts = static_cast<std::size_t>(logits.extent[1]);
  std::vector<double> result;
  for (index_t token = 0; token < logits.extent[0]; ++token) {
    std::vector<std::size_t> ids;
    std::vector<double> d_chosen;
    for (index_t k = 0; k < expert_ids.extent[1]; ++k) {
      double const id = at(expert_ids, token, k);
      if (id == -1.0 || id == static_cast<double>(experts)) continue;
      if (id < 0.0 || id > static_cast<double>(experts)) {
        throw error(errc::invalid_expert, "[oracle route_backward] token " + std::to_string(token) +
                                              " has id " + std::to_string(id));
      }
      ids.push_back(static_cast<std::size_t>(id));
      d_chosen.push_back(at(d_weights, token, k));
    }
    std::vector<double> const token_logits = row_of(logits, token);
    std::vector<double> const scores = chosen_scores(token_logits, ids, options.score);
    std::vector<double> const d_scores = through_renormalize(scores, d_chosen, options);
    double const dot = std::inner_product(scores.begin(), scores.end(), d_scores.begin(), 0.0);

    std::vector<double> d_logits(experts, 0.0);
    for (std::size_t k = 0; k < ids.size(); ++k) {
      double const score = scores[k];
      if (options.score == scoring::sigmoid) {
        d_logits[ids[k]] += d_scores[k] * score * (1.0 - score);
      } else if (options.score == scoring::softmax_of_selected) {
        d_logits[ids[k]] += score * (d_scores[k] - dot);
      } else {
        d_logits[ids[k]] += score * d_scores[k];
      }
    }
    if (options.score == scoring::softmax && !ids.empty()) {
      std::vector<double> const all = softmax(token_logits);
      for (std::size_t expert = 0; expert < experts; ++expert)
        d_logits[expert] -= all[expert] * dot;
    }
    result.insert(result.end(), d_logits.begin(), d_logits.end());
  }
  return result;
}

}  // namespace moe64::oracle
