#pragma once

#include "moe64/layer.hpp"

#include <vector>

/// What tests and `moe64 verify` compare with: every operation and the layer in double, in plain
/// loops, from the public types alone. It shares no code with the operations, not even the number
/// formats. It is slow on purpose and never rounds, except where the definition of an operation
/// does (codes of `quantize`, w8a8 activations).
namespace moe64::oracle {

// ---- numbers ------------------------------------------------------------------------------------

/// The number stored as element `offset` (in elements) of an array of `type`.
[[nodiscard]] double load(void const* data, dtype type, index_t offset);
/// Element (i, j, k) of a view; indices past its rank are ignored. Integers come back as their
/// value.
[[nodiscard]] double at(tensor_view const& tensor, index_t i, index_t j = 0, index_t k = 0);
/// The number that code (expert, row, col) stands for: code times scale (times or by the global
/// scale).
[[nodiscard]] double at(quantized_view const& q, index_t expert, index_t row, index_t col);
/// Row `row` of a stack counts through its parts: gate rows, then up rows.
[[nodiscard]] double at(weight_stack const& weights, index_t expert, index_t row, index_t col);
/// `value` rounded to the nearest number of `type`, as a double: ties to even; overflow saturates
/// for e4m3, e5m2, fp4 and integers and is infinity for f32, bf16 and f16. e8m0 goes up to the next
/// power of two instead, within its range. Where there is no NaN it becomes 0 (integers) or 6
/// (fp4).
[[nodiscard]] double round_to(double value, dtype type);

// ---- operations ---------------------------------------------------------------------------------

/// What quantize must produce for a [rows, cols] matrix: the numbers of the codes (before scaling)
/// and of the scales.
struct quantized_matrix {
  std::vector<double> codes;   // [rows, cols]
  std::vector<double> scales;  // [grid_rows, grid_cols]
  double global = 1.0;         // NVFP4 only
};
[[nodiscard]] quantized_matrix quantize(tensor_view const& x, dtype code, dtype scale,
                                        granularity const& layout, global_scale const& global = {});

struct routed {
  std::vector<index_t> ids;     // [tokens, top_k]
  std::vector<double> weights;  // [tokens, top_k]
};
[[nodiscard]] routed route(tensor_view const& logits, tensor_view const& selection_bias,
                           route_options const& options, index_t top_k);
/// [tokens, experts]
[[nodiscard]] std::vector<double> route_backward(tensor_view const& logits,
                                                 route_options const& options,
                                                 tensor_view const& expert_ids,
                                                 tensor_view const& d_weights);

/// Which rows exist: the routing plan in plain vectors.
struct planned {
  std::vector<index_t> expert_begin, row_to_slot,
      slot_to_row;  // as in routing_plan; row_to_slot holds kept rows only
  index_t skipped = 0, elsewhere = 0, dropped = 0;
};
[[nodiscard]] planned plan(tensor_view const& expert_ids, index_t experts_total,
                           index_t first_expert, index_t experts, index_t capacity);

[[nodiscard]] double activate(activation_spec const& spec, double gate, double up);
struct activation_gradient {
  double gate = 0.0, up = 0.0;
};
[[nodiscard]] activation_gradient activate_backward(activation_spec const& spec, double gate,
                                                    double up, double d_out);

// ---- the layer ----------------------------------------------------------------------------------

/// The operands of one layer call.
struct layer_call {
  tensor_view x;           // [tokens, hidden]
  tensor_view expert_ids;  // [tokens, top_k]
  tensor_view weights;     // [tokens, top_k] or absent
  index_t capacity = -1;
  /// w8a8: rows are quantised as the operations do, and before that rounded to the type of x, which
  /// is how they lie in memory then: a code is a step function of what is quantised.
  compute_mode mode = compute_mode::w8a16;
};

/// y of one token, [hidden].
[[nodiscard]] std::vector<double> forward_token(layer_desc const& layer, layer_call const& call,
                                                planned const& rows, index_t token);

struct token_gradient {
  std::vector<double> x;        // [hidden]
  std::vector<double> weights;  // [top_k]
};
[[nodiscard]] token_gradient backward_token(layer_desc const& layer, layer_call const& call,
                                            planned const& rows, tensor_view const& dy,
                                            index_t token);

/// Gradients of all parameters of one projection of one expert, an index into the stacks; row r
/// counts through the parts.
struct projection_gradient {
  std::vector<double> weights;  // [out, in]
  std::vector<double> bias;     // [out]
  std::vector<double> lora_a;   // [rank, in], empty without LoRA
  std::vector<double> lora_b;   // [out, rank], empty without LoRA
};
struct expert_gradient {
  projection_gradient gate_up, down;
};
[[nodiscard]] expert_gradient backward_expert(layer_desc const& layer, layer_call const& call,
                                              planned const& rows, tensor_view const& dy,
                                              index_t expert);

/// The same of some neurons (indices below inter) alone, for a share of the work: their rows of
/// gate, then of up, and their columns of down. What takes every neuron is left empty: lora_a of
/// gate_up and lora_b of down.
[[nodiscard]] expert_gradient backward_neurons(layer_desc const& layer, layer_call const& call,
                                               planned const& rows, tensor_view const& dy,
                                               index_t expert, std::vector<index_t> const& neurons);

/// Multiply-adds of forward_token for one slot: what a caller uses to decide how much of a problem
/// to sample.
[[nodiscard]] double slot_cost(layer_desc const& layer);

}  // namespace moe64::oracle
