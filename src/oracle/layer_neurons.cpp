#include "oracle/slot.hpp"

#include <cstddef>

namespace moe64::oracle {
namespace {

/// One slot's way there and back through some neurons.
struct neuron_pass {
  std::vector<double> low_rank;    // [rank] of gate_up, empty without LoRA
  std::vector<double> inner;       // [neurons]
  std::vector<double> d_out;       // [hidden]
  std::vector<double> d_low_rank;  // [rank] of down, empty without LoRA
  std::vector<double> d_gate_up;   // [parts * neurons]
};

neuron_pass pass_neurons(layer_desc const& layer, layer_call const& call, slot_pass const& slot,
                         tensor_view const& dy, std::vector<index_t> const& neurons) {
  neuron_pass pass;
  storage const memory(call);
  bool const gated = is_gated(layer.activation.kind);
  projection_input const read =
      input_of(layer.gate_up, slot.expert, slot.x, memory, call.mode == compute_mode::w8a8);
  pass.low_rank = read.low_rank;
  std::vector<double> h;
  for (index_t part = 0; part < (gated ? 2 : 1); ++part) {
    for (index_t const neuron : neurons) {
      h.push_back(output_of(layer.gate_up, slot.expert, read, part * layer.inter() + neuron));
    }
  }
  memory.keep(h);

  double const factor = layer.weight_on == weight_placement::output ? slot.weight : 1.0;
  for (index_t i = 0; i < layer.hidden(); ++i) {
    pass.d_out.push_back(factor * at(dy, slot.token, i));
  }
  lora_adapter const& lora = layer.down.lora;
  for (index_t r = 0; lora.present() && r < lora.a.rows(); ++r) {
    double sum = 0.0;
    for (index_t i = 0; i < layer.hidden(); ++i) {
      sum += double{lora.scaling} * pass.d_out[place(i)] * at(lora.b, slot.expert, i, r);
    }
    pass.d_low_rank.push_back(sum);
  }

  std::size_t const count = neurons.size();
  pass.d_gate_up.resize(h.size());
  for (std::size_t n = 0; n < count; ++n) {
    double d_inner = 0.0;
    for (index_t i = 0; i < layer.hidden(); ++i) {
      d_inner += pass.d_out[place(i)] * at(layer.down.weights, slot.expert, i, neurons[n]);
    }
    for (std::size_t r = 0; r < pass.d_low_rank.size(); ++r) {
      d_inner += pass.d_low_rank[r] * at(lora.a, slot.expert, static_cast<index_t>(r), neurons[n]);
    }
    double const up = gated ? h[count + n] : 0.0;
    pass.inner.push_back(activate(layer.activation, h[n], up));
    activation_gradient const d = activate_backward(layer.activation, h[n], up, d_inner);
    pass.d_gate_up[n] = d.gate;
    if (gated) pass.d_gate_up[count + n] = d.up;
  }
  memory.keep(pass.inner);
  return pass;
}

/// sum += scale * left^T right
void add_outer(std::vector<double>& sum, double scale, std::vector<double> const& left,
               std::vector<double> const& right) {
  sum.resize(left.size() * right.size(), 0.0);
  for (std::size_t i = 0; i < left.size(); ++i) {
    for (std::size_t j = 0; j < right.size(); ++j) {
      sum[i * right.size() + j] += scale * left[i] * right[j];
    }
  }
}

}  // namespace

expert_gradient backward_neurons(layer_desc const& layer, layer_call const& call,
                                 planned const& rows, tensor_view const& dy, index_t expert,
                                 std::vector<index_t> const& neurons) {
  expert_gradient sum;
  index_t const end = rows.expert_begin[place(expert + 1)];
  for (index_t row = rows.expert_begin[place(expert)]; row < end; ++row) {
    slot_pass const slot = begin_slot(layer, call, rows, rows.row_to_slot[place(row)]);
    neuron_pass const pass = pass_neurons(layer, call, slot, dy, neurons);
    std::vector<double> const one{1.0};
    add_outer(sum.gate_up.weights, 1.0, pass.d_gate_up, slot.x);
    add_outer(sum.gate_up.bias, 1.0, pass.d_gate_up, one);
    add_outer(sum.down.weights, 1.0, pass.d_out, pass.inner);
    add_outer(sum.down.bias, 1.0, pass.d_out, one);
    if (layer.gate_up.lora.present()) {
      double const scaling = double{layer.gate_up.lora.scaling};
      add_outer(sum.gate_up.lora_b, scaling, pass.d_gate_up, pass.low_rank);
    }
    if (layer.down.lora.present()) {
      add_outer(sum.down.lora_a, 1.0, pass.d_low_rank, pass.inner);
    }
  }
  return sum;
}

}  // namespace moe64::oracle
