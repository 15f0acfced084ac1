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

projected project(projection const& p, index_t expert, std::vector<double> const& input,
                  storage const& memory, bool quantizes) {
  projection_input const read = input_of(p, expert, input, memory, quantizes);
  projected result{read.low_rank, {}};
  for (index_t row = 0; row < p.weights.rows(); ++row) {
    result.out.push_back(output_of(p, expert, read, row));
  }
  return result;
}

}  // namespace

index_t slots_per_token(layer_call const& call, planned const& rows) {
  index_t const tokens = call.x.extent[0];
  return tokens == 0 ? 0 : std::ssize(rows.slot_to_row) / tokens;
}

projection_input input_of(projection const& p, index_t expert, std::vector<double> const& input,
                          storage const& memory, bool quantizes) {
  projection_input result;
  if (p.lora.present()) {
    for (index_t r = 0; r < p.lora.a.rows(); ++r) {
      result.low_rank.push_back(dot_row(p.lora.a, expert, r, input));
    }
    memory.keep(result.low_rank);
  }
  result.seen = quantizes ? quantized_activation(input, p.weights) : input;
  return result;
}

double output_of(projection const& p, index_t expert, projection_input const& input, index_t row) {
  double const sum = dot_row(p.weights, expert, row, input.seen) + bias_at(p, expert, row);
  if (!p.lora.present()) return sum;
  return sum + double{p.lora.scaling} * dot_row(p.lora.b, expert, row, input.low_rank);
}

slot_pass begin_slot(layer_desc const& layer, layer_call const& call, planned const& rows,
                     index_t slot) {
  index_t const top_k = slots_per_token(call, rows);
  index_t const row = rows.slot_to_row[place(slot)];
  auto const after = std::upper_bound(rows.expert_begin.begin(), rows.expert_begin.end(), row);
  slot_pass pass;
  pass.token = slot / top_k;
  pass.expert = after - rows.expert_begin.begin() - 1;
  if (call.weights.present()) pass.weight = at(call.weights, pass.token, slot % top_k);
  double const factor = layer.weight_on == weight_placement::input ? pass.weight : 1.0;
  for (index_t i = 0; i < layer.hidden(); ++i) pass.x.push_back(at(call.x, pass.token, i) * factor);
  storage(call).keep(pass.x);
  return pass;
}

slot_pass pass_slot(layer_desc const& layer, layer_call const& call, planned const& rows,
                    index_t slot, pass_use use) {
  storage const memory(call);
  bool const quantizes = call.mode == compute_mode::w8a8;
  slot_pass pass = begin_slot(layer, call, rows, slot);
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
