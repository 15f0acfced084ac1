#include "oracle/quantize.hpp"
#include "oracle/slot.hpp"

#include <algorithm>
#include <cstddef>

namespace moe64::oracle {
namespace {

double dot_row(weight_stack const& weights, index_t expert, index_t row,
               std::vector<double> const& input) {
  double sum = 0.0;
  for (index_t col = 0; col < weights.cols(); ++col) {
    sum += at(weights, expert, row, col) * input[place(col)];
  }
  return sum;
}

double bias_at(projection const& p, index_t expert, index_t row) {
  index_t const part = row / p.weights.part_rows();
  tensor_view const& bias = p.bias[place(part)];
  return bias.present() ? at(bias, expert, row - part * p.weights.part_rows()) : 0.0;
}

/// Rounds a result of f32 arithmetic to what memory between two operations holds. Only w8a8 asks
/// for it: a code is a step function of what is quantised, so an input that is not rounded as the
/// operations round it would give other codes.
class storage {
 public:
  explicit storage(layer_call const& call)
      : rounds_(call.mode == compute_mode::w8a8), type_(call.x.type) {}
  void keep(std::vector<double>& values) const {
    if (!rounds_) return;
    for (double& value : values) value = round_to(round_to(value, dtype::f32), type_);
  }

 private:
  bool rounds_;
  dtype type_;
};

projected project(projection const& p, index_t expert, std::vector<double> const& input,
                  storage const& memory, bool quantizes) {
  projected result;
  if (p.lora.present()) {
    for (index_t r = 0; r < p.lora.a.rows(); ++r) {
      result.low_rank.push_back(dot_row(p.lora.a, expert, r, input));
    }
    memory.keep(result.low_rank);
  }
  std::vector<double> const seen = quantizes ? quantized_activation(input, p.weights) : input;
  for (index_t row = 0; row < p.weights.rows(); ++row) {
    double sum = dot_row(p.weights, expert, row, seen) + bias_at(p, expert, row);
    if (p.lora.present()) {
      sum += double{p.lora.scaling} * dot_row(p.lora.b, expert, row, result.low_rank);
    }
    result.out.push_back(sum);
  }
  return result;
}

}  // namespace

index_t slots_per_token(layer_call const& call, planned const& rows) {
  index_t const tokens = call.x.extent[0];
  return tokens == 0 ? 0 : std::ssize(rows.slot_to_row) / tokens;
}

slot_pass pass_slot(layer_desc const& layer, layer_call const& call, planned const& rows,
                    index_t slot, pass_use use) {
  index_t const top_k = slots_per_token(call, rows);
  index_t const row = rows.slot_to_row[place(slot)];
  auto const after = std::upper_bound(rows.expert_begin.begin(), rows.expert_begin.end(), row);
  storage const memory(call);
  bool const quantizes = call.mode == compute_mode::w8a8;

  slot_pass pass;
  pass.token = slot / top_k;
  pass.expert = after - rows.expert_begin.begin() - 1;
  if (call.weights.present()) pass.weight = at(call.weights, pass.token, slot % top_k);
  double const factor = layer.weight_on == weight_placement::input ? pass.weight : 1.0;
  for (index_t i = 0; i < layer.hidden(); ++i) pass.x.push_back(at(call.x, pass.token, i) * factor);
  memory.keep(pass.x);

  pass.gate_up = project(layer.gate_up, pass.expert, pass.x, memory, quantizes);
  memory.keep(pass.gate_up.out);
  std::vector<double> const& h = pass.gate_up.out;
  index_t const inter = layer.inter();
  bool const gated = is_gated(layer.activation.kind);
  for (index_t i = 0; i < inter; ++i) {
    double const up = gated ? h[place(inter + i)] : 0.0;
    pass.inner.push_back(activate(layer.activation, h[place(i)], up));
  }
  memory.keep(pass.inner);
  pass.down =
      project(layer.down, pass.expert, pass.inner, memory, quantizes && use == pass_use::forward);
  return pass;
}

std::vector<double> forward_token(layer_desc const& layer, layer_call const& call,
                                  planned const& rows, index_t token) {
  std::vector<double> y(place(layer.hidden()), 0.0);
  index_t const top_k = slots_per_token(call, rows);
  for (index_t slot = token * top_k; slot < (token + 1) * top_k; ++slot) {
    if (rows.slot_to_row[place(slot)] < 0) continue;
    slot_pass const pass = pass_slot(layer, call, rows, slot, pass_use::forward);
    double const factor = layer.weight_on == weight_placement::output ? pass.weight : 1.0;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += factor * pass.down.out[i];
  }
  return y;
}

double slot_cost(layer_desc const& layer) {
  double cost = 0.0;
  for (projection const* p : {&layer.gate_up, &layer.down}) {
    auto const in = static_cast<double>(p->weights.cols());
    auto const out = static_cast<double>(p->weights.rows());
    cost += in * out;
    if (p->lora.present()) cost += static_cast<double>(p->lora.a.rows()) * (in + out);
  }
  return cost;
}

}  // namespace moe64::oracle
