#include "oracle/slot.hpp"

#include <cstddef>

namespace moe64::oracle {
namespace {

/// scale * d * W
void add_through(std::vector<double>& d_input, double scale, std::vector<double> const& d,
                 weight_stack const& weights, index_t expert) {
  for (index_t row = 0; row < weights.rows(); ++row) {
    for (index_t col = 0; col < weights.cols(); ++col) {
      d_input[place(col)] += scale * d[place(row)] * at(weights, expert, row, col);
    }
  }
}

/// Gradients that belong to one projected: of its input, and of its low-rank intermediate.
struct projected_gradient {
  std::vector<double> low_rank, input;
};

projected_gradient through(projection const& p, index_t expert, std::vector<double> const& d_out) {
  projected_gradient result;
  result.input.resize(place(p.weights.cols()), 0.0);
  add_through(result.input, 1.0, d_out, p.weights, expert);
  if (p.lora.present()) {
    result.low_rank.resize(place(p.lora.a.rows()), 0.0);
    add_through(result.low_rank, p.lora.scaling, d_out, p.lora.b, expert);
    add_through(result.input, 1.0, result.low_rank, p.lora.a, expert);
  }
  return result;
}

/// One slot's way back; the names are those of slot_pass.
struct slot_gradient {
  std::vector<double> down_out, gate_up_out;
  projected_gradient down, gate_up;
};

slot_gradient pass_back(layer_desc const& layer, slot_pass const& pass, tensor_view const& dy) {
  slot_gradient d;
  double const factor = layer.weight_on == weight_placement::output ? pass.weight : 1.0;
  for (index_t i = 0; i < layer.hidden(); ++i) {
    d.down_out.push_back(factor * at(dy, pass.token, i));
  }
  d.down = through(layer.down, pass.expert, d.down_out);

  index_t const inter = layer.inter();
  bool const gated = is_gated(layer.activation.kind);
  std::vector<double> const& h = pass.gate_up.out;
  d.gate_up_out.resize(h.size(), 0.0);
  for (index_t i = 0; i < inter; ++i) {
    activation_gradient const g = activate_backward(
        layer.activation, h[place(i)], gated ? h[place(inter + i)] : 0.0, d.down.input[place(i)]);
    d.gate_up_out[place(i)] = g.gate;
    if (gated) d.gate_up_out[place(inter + i)] = g.up;
  }
  d.gate_up = through(layer.gate_up, pass.expert, d.gate_up_out);
  return d;
}

projection_gradient zeros(projection const& p) {
  index_t const out = p.weights.rows();
  index_t const in = p.weights.cols();
  projection_gradient result;
  result.weights.resize(place(out * in), 0.0);
  result.bias.resize(place(out), 0.0);
  if (p.lora.present()) {
    index_t const rank = p.lora.a.rows();
    result.lora_a.resize(place(rank * in), 0.0);
    result.lora_b.resize(place(out * rank), 0.0);
  }
  return result;
}

/// sum += scale * left^T right
void add_outer(std::vector<double>& sum, double scale, std::vector<double> const& left,
               std::vector<double> const& right) {
  for (std::size_t i = 0; i < left.size(); ++i) {
    for (std::size_t j = 0; j < right.size(); ++j) {
      sum[i * right.size() + j] += scale * left[i] * right[j];
    }
  }
}

void accumulate(projection_gradient& sum, projection const& p, std::vector<double> const& input,
                std::vector<double> const& low_rank, std::vector<double> const& d_out,
                std::vector<double> const& d_low_rank) {
  add_outer(sum.weights, 1.0, d_out, input);
  for (std::size_t i = 0; i < d_out.size(); ++i) sum.bias[i] += d_out[i];
  if (!p.lora.present()) return;
  add_outer(sum.lora_b, p.lora.scaling, d_out, low_rank);
  add_outer(sum.lora_a, 1.0, d_low_rank, input);
}

}  // namespace

token_gradient backward_token(layer_desc const& layer, layer_call const& call, planned const& rows,
                              tensor_view const& dy, index_t token) {
  index_t const top_k = slots_per_token(call, rows);
  token_gradient result;
  result.x.resize(place(layer.hidden()), 0.0);
  result.weights.resize(place(top_k), 0.0);
  for (index_t k = 0; k < top_k; ++k) {
    index_t const slot = token * top_k + k;
    if (rows.slot_to_row[place(slot)] < 0) continue;
    slot_pass const pass = pass_slot(layer, call, rows, slot, pass_use::backward);
    slot_gradient const d = pass_back(layer, pass, dy);
    bool const on_input = layer.weight_on == weight_placement::input;
    for (index_t i = 0; i < layer.hidden(); ++i) {
      double const d_x = d.gate_up.input[place(i)];
      result.x[place(i)] += on_input ? pass.weight * d_x : d_x;
      result.weights[place(k)] +=
          on_input ? d_x * at(call.x, token, i) : at(dy, token, i) * pass.down.out[place(i)];
    }
  }
  return result;
}

expert_gradient backward_expert(layer_desc const& layer, layer_call const& call,
                                planned const& rows, tensor_view const& dy, index_t expert) {
  expert_gradient result{zeros(layer.gate_up), zeros(layer.down)};
  index_t const end = rows.expert_begin[place(expert + 1)];
  for (index_t row = rows.expert_begin[place(expert)]; row < end; ++row) {
    slot_pass const pass =
        pass_slot(layer, call, rows, rows.row_to_slot[place(row)], pass_use::backward);
    slot_gradient const d = pass_back(layer, pass, dy);
    accumulate(result.gate_up, layer.gate_up, pass.x, pass.gate_up.low_rank, d.gate_up_out,
               d.gate_up.low_rank);
    accumulate(result.down, layer.down, pass.inner, pass.down.low_rank, d.down_out,
               d.down.low_rank);
  }
  return result;
}

}  // namespace moe64::oracle
