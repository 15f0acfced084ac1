#include "cases/expert_sample.hpp"
#include "cases/layer_scenario.hpp"

#include <algorithm>
#include <cmath>

namespace moe64::cases {
namespace {

/// Rows [part * rows, (part + 1) * rows) of a row-major matrix.
std::vector<double> half(std::vector<double> const& matrix, int part, int parts) {
  auto const size = std::ssize(matrix) / parts;
  return {matrix.begin() + part * size, matrix.begin() + (part + 1) * size};
}

double norm(std::vector<double> const& values) {
  double sum = 0.0;
  for (double const value : values) sum += value * value;
  return std::sqrt(sum);
}

double norm_of_row(tensor_view const& matrix, index_t row) {
  std::vector<double> values;
  for (index_t c = 0; c < matrix.extent[1]; ++c) values.push_back(oracle::at(matrix, row, c));
  return norm(values);
}

/// 2-norms that one row of each gradient of a projection is made to have.
struct typical_gradients {
  double weights, bias, lora_a, lora_b;
};

/// `n` rows of gradients of deviation `d_out` [out] and inputs of deviation `in` [in]; LoRA keeps
/// deviations and has a scaling of one half.
typical_gradients typical_of(projection const& p, double n, double d_out, double in) {
  auto const root = [](index_t extent) { return std::sqrt(static_cast<double>(extent)); };
  double const sums = std::sqrt(n) * d_out;
  double const inputs = in * root(p.weights.cols());
  typical_gradients sizes{sums * inputs, sums * root(p.weights.part_rows()), 0.0, 0.0};
  if (!p.lora.present()) return sizes;
  double const rank = root(p.lora.a.rows());
  sizes.lora_b = 0.5 * sums * in * rank;
  sizes.lora_a = 0.5 * sums * root(p.weights.rows()) / rank * inputs;
  return sizes;
}

/// The same of the columns of some neurons.
typical_gradients cut_columns(typical_gradients sizes, double share) {
  sizes.weights *= share;
  sizes.lora_a *= share;
  return sizes;
}

/// In the order of layer_scenario::parameters(); what the reference has left out is not there.
void append(std::vector<expectation>& all, projection_gradients const& asked,
            oracle::projection_gradient const& wanted, int parts,
            typical_gradients const& typical) {
  for (int i = 0; i < parts; ++i) {
    auto const part = static_cast<std::size_t>(i);
    auto const add = [&](tensor_view const& output, std::vector<double> const& both, double size) {
      if (output.present() && !both.empty()) all.push_back({half(both, i, parts), size});
    };
    add(asked.weights[part], wanted.weights, typical.weights);
    add(asked.bias[part], wanted.bias, typical.bias);
    add(asked.lora_b[part], wanted.lora_b, typical.lora_b);
  }
  if (asked.lora_a.present() && !wanted.lora_a.empty()) {
    all.push_back({wanted.lora_a, typical.lora_a});
  }
}

}  // namespace

double layer_scenario::bound(layer_output output, index_t rows) const {
  return s_.data == data_mode::exact ? 0.0 : layer_tolerance(s_.p, mode_.mode, output, rows);
}

void layer_scenario::compare(comparison& result) const {
  oracle::layer_call const call{forward_.x, forward_.expert_ids, forward_.weights, -1, mode_.mode};
  compare_tokens(result, call);
  if (s_.p.backward) compare_parameters(result, call);
}

std::vector<expectation> layer_scenario::expected_token(oracle::layer_call const& call,
                                                        index_t token) const {
  // The size of a slot's share follows from how the data are made: inputs and gradients of
  // deviation 1, projections that keep the deviation.
  double weights = 0.0;
  index_t live = 0;
  for (index_t k = 0; k < s_.p.top_k; ++k) {
    if (routed_.rows.slot_to_row[static_cast<std::size_t>(token * s_.p.top_k + k)] < 0) continue;
    double const weight = oracle::at(forward_.weights, token, k);
    weights += weight * weight;
    ++live;
  }
  double const slots = std::sqrt(static_cast<double>(live));
  bool const on_input = s_.p.weight_on == weight_placement::input;
  double const width = std::sqrt(static_cast<double>(s_.p.hidden));
  double const y = width * magnitude_.value * (on_input ? slots : std::sqrt(weights));

  std::vector<expectation> wanted;
  wanted.push_back({oracle::forward_token(layer_, call, routed_.rows, token), y});
  if (!s_.p.backward) return wanted;
  auto gradient = oracle::backward_token(layer_, call, routed_.rows, backward_.dy, token);
  double const per_slot = on_input ? magnitude_.gradient : magnitude_.value;
  double d_weights = width * per_slot * slots;
  if (!on_input && live > 0) {
    // A dot product of dy and a row is as exact as the row is large, and this token may have large
    // ones.
    double const row = norm(wanted[0].values) / std::sqrt(weights);
    d_weights = std::max(d_weights, row * norm_of_row(backward_.dy, token) / width * slots);
  }
  wanted.push_back({std::move(gradient.x), width * magnitude_.gradient * std::sqrt(weights)});
  wanted.push_back({std::move(gradient.weights), d_weights});
  return wanted;
}

void layer_scenario::compare_tokens(comparison& result, oracle::layer_call const& call) const {
  // Forward once; backward_token goes forward again and then back.
  double const passes = s_.p.backward ? 3.0 : 1.0;
  double const token_cost =
      std::max(1.0, passes * oracle::slot_cost(layer_) * static_cast<double>(s_.p.top_k));
  std::vector<index_t> always;
  for (index_t row = std::max<index_t>(0, routed_.live() - 2); row < routed_.live(); ++row) {
    always.push_back(routed_.rows.row_to_slot[static_cast<std::size_t>(row)] / s_.p.top_k);
  }
  auto const sample = sample_of(s_.p.tokens, result.budget() / token_cost, always);

  std::vector<compared_output> outputs{{"y", forward_.y, bound(layer_output::y, 0)}};
  if (s_.p.backward) {
    outputs.push_back({"dx", backward_.gradients.x, bound(layer_output::dx, 0)});
    outputs.push_back(
        {"d_weights", backward_.gradients.weights, bound(layer_output::d_weights, 0)});
  }
  result.entries(
      outputs, sample, s_.p.tokens, [&](index_t token) { return expected_token(call, token); },
      [&](index_t token) { return routed_.experts_of_token(token); });

  auto const lives = [&](index_t token) { return !routed_.experts_of_token(token).empty(); };
  for (compared_output const& output : outputs) result.scan(output.name, output.got, lives);
  result.zero("y of token", forward_.y, [&](index_t token) { return !lives(token); });
}

std::vector<expectation> layer_scenario::expected_parameters(oracle::layer_call const& call,
                                                             index_t expert,
                                                             neuron_sample const& neurons) const {
  bool const whole = neurons.count() == s_.p.inter;
  auto const wanted =
      whole ? oracle::backward_expert(layer_, call, routed_.rows, backward_.dy, expert)
            : oracle::backward_neurons(layer_, call, routed_.rows, backward_.dy, expert,
                                       neurons.indices());
  auto const rows = static_cast<double>(routed_.rows_of(expert));
  double const slot_weight = 1.0 / static_cast<double>(s_.p.top_k);
  bool const on_input = s_.p.weight_on == weight_placement::input;
  double const d_row = on_input ? 1.0 : slot_weight;
  double const x = on_input ? slot_weight : 1.0;
  double const d_inner =
      d_row * std::sqrt(static_cast<double>(s_.p.hidden) / static_cast<double>(s_.p.inter));
  int const parts = layer_.gate_up.weights.parts();
  double const d_part = d_inner * magnitude_.gradient / std::sqrt(static_cast<double>(parts));
  typical_gradients gate_up = typical_of(layer_.gate_up, rows, d_part, x);
  gate_up.bias *= neurons.norm_share();
  typical_gradients const down = typical_of(layer_.down, rows, d_row, magnitude_.value);
  std::vector<expectation> all;
  append(all, backward_.gradients.gate_up, wanted.gate_up, parts, gate_up);
  append(all, backward_.gradients.down, wanted.down, 1, cut_columns(down, neurons.norm_share()));
  return all;
}

/// What of a parameter's gradient belongs to some neurons: rows of what gate and up end in, columns
/// of what down begins with. Empty where every neuron is in every number.
std::function<tensor_view(index_t)> layer_scenario::part_of(tensor_view const& gradient,
                                                            neuron_sample const& neurons) const {
  auto const is = [&](tensor_view const& one) { return one.data == gradient.data; };
  projection_gradients const& gate_up = backward_.gradients.gate_up;
  projection_gradients const& down = backward_.gradients.down;
  if (is(gate_up.lora_a) || is(down.lora_b[0])) return {};
  if (is(down.bias[0])) return [=](index_t expert) { return entry_of(gradient, expert); };
  bool const cols = is(down.weights[0]) || is(down.lora_a) || gradient.rank == 2;
  return [=](index_t expert) {
    tensor_view const whole = entry_of(gradient, expert);
    return cols ? neurons.cols_of(whole) : neurons.rows_of(whole);
  };
}

void layer_scenario::compare_parameters(comparison& result, oracle::layer_call const& call) const {
  auto const asked = parameters();
  if (asked.empty()) return;
  auto const used = routed_.used_experts();
  auto const cost = [&](index_t expert) {
    return 3.0 * oracle::slot_cost(layer_) * static_cast<double>(routed_.rows_of(expert));
  };
  expert_sample const chosen = experts_within(used, result.budget(), cost);
  neuron_sample const neurons(s_.p.inter, static_cast<double>(s_.p.inter) * chosen.share);
  bool const whole = neurons.count() == s_.p.inter;
  index_t longest = 0;
  for (index_t const expert : chosen.experts) longest = std::max(longest, routed_.rows_of(expert));

  double const allowed = bound(layer_output::parameter, longest);
  std::vector<compared_output> outputs;
  std::vector<std::string> left_out;
  for (named_tensor const& d : asked) {
    if (whole) {
      outputs.push_back({d.name, d.tensor, allowed, {}, true});
    } else if (auto const part = part_of(d.tensor, neurons)) {
      outputs.push_back({d.name, d.tensor, allowed, part, true, neurons.count()});
    } else {
      left_out.push_back(d.name);
    }
  }
  result.entries(
      outputs, chosen.experts, std::ssize(used),
      [&](index_t expert) { return expected_parameters(call, expert, neurons); },
      [](index_t expert) { return std::vector<index_t>{expert}; });
  for (std::string const& name : left_out) result.left_out(name, allowed, std::ssize(used));
  auto const lives = [&](index_t expert) { return routed_.rows_of(expert) > 0; };
  for (named_tensor const& d : asked) {
    result.scan(d.name, d.tensor, lives);
    result.zero(d.name + " of expert", d.tensor, [&](index_t e) { return !lives(e); });
  }
}

}  // namespace moe64::cases
