#include "cases/loaded_layer.hpp"

#include "cases/layer_scenario.hpp"
#include "cases/parallel.hpp"
#include "fmt/format.h"
#include "moe64/error.hpp"
#include "moe64/explain.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace moe64::cases {
namespace {

/// The layer in the words of the table of tolerances.
problem problem_of(layer_desc const& layer, loaded_options const& options) {
  problem p;
  p.tokens = options.tokens;
  p.hidden = layer.hidden();
  p.inter = layer.inter();
  p.experts = layer.experts();
  p.top_k = options.top_k;
  // where the projections differ, the one whose weights are rounded to io counts
  weight_stack const& weights =
      layer.gate_up.weights.type() != options.io ? layer.gate_up.weights : layer.down.weights;
  p.weight = format_of(weights.type(), weights.part(0).scales().type);
  p.scale = layer.gate_up.weights.layout();
  p.act = layer.activation;
  p.mode = layer.mode;
  p.scheme = layer.scheme;
  p.io = options.io;
  p.weight_on = layer.weight_on;
  p.backward = options.backward;
  p.seed = options.seed;
  p.device = layer.down.weights.device();
  return p;
}

double norm(std::vector<double> const& values) {
  double sum = 0.0;
  for (double const value : values) sum += value * value;
  return std::sqrt(sum);
}

double norm_of_row(tensor_view const& matrix, index_t row) {
  double sum = 0.0;
  for (index_t c = 0; c < matrix.extent[1]; ++c) {
    double const value = oracle::at(matrix, row, c);
    sum += value * value;
  }
  return std::sqrt(sum);
}

double root_mean_square(std::vector<double> const& norms) {
  return norms.empty() ? 0.0 : norm(norms) / std::sqrt(static_cast<double>(norms.size()));
}

}  // namespace

loaded_layer::loaded_layer(layer_desc const& layer, loaded_options const& options, arena& memory,
                           cpu_executor* executor)
    : layer_(layer), p_(problem_of(layer, options)), memory_(memory), executor_(executor) {
  if (p_.top_k > p_.experts) {
    throw error(errc::invalid_argument,
                fmt::format("top_k is {}, but the layer has {} experts", p_.top_k, p_.experts));
  }
  setting const s{p_, data_mode::random, memory, executor, 1};
  routed_ = make_routing(memory, p_, data_mode::random);
  mode_ = resolve_mode(layer, p_.io, p_.device);
  layer_shape const shape{p_.tokens, p_.top_k, p_.io};
  forward_.x = plain_rows(s, "x", tensor_id::x, p_.tokens, p_.tokens, p_.hidden);
  forward_.expert_ids = routed_.expert_ids;
  forward_.weights = routed_.weights;
  forward_.y = memory.tensor("y", purpose::output, p_.io, {p_.tokens, p_.hidden});
  if (p_.backward) forward_.saved = memory.scratch("saved", saved_bytes(layer, shape, p_.device));
  forward_.scratch =
      memory.scratch("forward scratch", forward_bytes(layer, shape, p_.backward, p_.device));
  if (!p_.backward) return;
  backward_.x = forward_.x;
  backward_.dy = plain_rows(s, "dy", tensor_id::dy, p_.tokens, p_.tokens, p_.hidden);
  backward_.top_k = p_.top_k;
  backward_.saved = forward_.saved;
  layer_gradients& d = backward_.gradients;
  d.x = memory.tensor("dx", purpose::output, p_.io, {p_.tokens, p_.hidden});
  d.weights = memory.tensor("d_weights", purpose::output, dtype::f32, {p_.tokens, p_.top_k});
  backward_.scratch =
      memory.scratch("backward scratch", backward_bytes(layer, shape, d, p_.device));
}

void loaded_layer::forward(stream where) const {
  moe64::forward(memory_.there(layer_), memory_.there(forward_), where);
}
void loaded_layer::backward(stream where) const {
  moe64::backward(memory_.there(layer_), memory_.there(backward_), where);
}

std::string loaded_layer::implementation(stream where) const {
  auto const args = gemm_of(p_, layer_.gate_up, mode_.mode, forward_.x.data);
  for (implementation_report const& candidate : explain(args, where)) {
    if (candidate.answer) return candidate.name;
  }
  return "none";
}

double loaded_layer::flops() const {
  return 2.0 * static_cast<double>(routed_.live()) * oracle::slot_cost(layer_);
}

std::vector<index_t> loaded_layer::sample(double budget) const {
  double const passes = p_.backward ? 3.0 : 1.0;
  double const token = passes * oracle::slot_cost(layer_) * static_cast<double>(p_.top_k);
  return sample_of(p_.tokens, budget / std::max(1.0, token), {});
}

std::vector<loaded_layer::token_reference> loaded_layer::references(
    std::vector<index_t> const& tokens, progress_report const& progress) const {
  oracle::layer_call const call{forward_.x, forward_.expert_ids, forward_.weights, -1, mode_.mode};
  std::vector<token_reference> all(tokens.size());
  std::atomic<index_t> done = 0;
  parallel_for(executor_, std::ssize(tokens), [&](index_t i) {
    auto const place = static_cast<std::size_t>(i);
    all[place].y = oracle::forward_token(layer_, call, routed_.rows, tokens[place]);
    if (p_.backward) {
      all[place].gradient =
          oracle::backward_token(layer_, call, routed_.rows, backward_.dy, tokens[place]);
    }
    index_t const finished = ++done;
    if (progress) progress(finished, std::ssize(tokens));
  });
  return all;
}

/// The gradient of a slot weight is a dot product over `hidden` of a row and its gradient, and is
/// as exact as the two are large, however small it comes out.
double loaded_layer::typical_weight_gradient(token_reference const& reference,
                                             index_t token) const {
  double weights = 0.0;
  for (index_t k = 0; k < p_.top_k; ++k) {
    double const weight = oracle::at(forward_.weights, token, k);
    weights += weight * weight;
  }
  bool const on_input = p_.weight_on == weight_placement::input;
  double const row = norm(on_input ? reference.gradient.x : reference.y) / std::sqrt(weights);
  double const other = norm_of_row(on_input ? forward_.x : backward_.dy, token);
  return row * other * std::sqrt(static_cast<double>(p_.top_k) / static_cast<double>(p_.hidden));
}

verification loaded_layer::verify(stream where, double budget,
                                  progress_report const& progress) const {
  wait(where);
  memory_.download();
  auto const tokens = sample(budget);
  auto const wanted = references(tokens, progress);
  std::vector<double> y;
  std::vector<double> dx;
  for (token_reference const& reference : wanted) {
    y.push_back(norm(reference.y));
    dx.push_back(norm(reference.gradient.x));
  }
  double const typical_y = root_mean_square(y);
  double const typical_dx = root_mean_square(dx);
  auto const bound = [&](layer_output output) {
    return layer_tolerance(p_, mode_.mode, output, 0);
  };
  std::vector<compared_output> outputs{{"y", forward_.y, bound(layer_output::y)}};
  if (p_.backward) {
    outputs.push_back({"dx", backward_.gradients.x, bound(layer_output::dx)});
    outputs.push_back({"d_weights", backward_.gradients.weights, bound(layer_output::d_weights)});
  }
  comparison found(p_.experts, budget, executor_, {});
  found.entries(
      outputs, tokens, p_.tokens,
      [&](index_t token) {
        auto const at = std::lower_bound(tokens.begin(), tokens.end(), token) - tokens.begin();
        token_reference const& reference = wanted[static_cast<std::size_t>(at)];
        std::vector<expectation> all{{reference.y, typical_y}};
        if (p_.backward) {
          all.push_back({reference.gradient.x, typical_dx});
          all.push_back({reference.gradient.weights, typical_weight_gradient(reference, token)});
        }
        return all;
      },
      [&](index_t token) { return routed_.experts_of_token(token); });
  for (compared_output const& output : outputs) {
    found.scan(output.name, output.got, [](index_t) { return true; });
  }
  verification result;
  result.implementation = implementation(where);
  result.outputs = found.outputs();
  result.faults = found.faults();
  for (std::string const& name : memory_.damaged()) {
    result.faults.push_back(fmt::format("bytes behind {} were overwritten", name));
  }
  result.compared = std::ssize(tokens);
  result.total = p_.tokens;
  return result;
}

}  // namespace moe64::cases
