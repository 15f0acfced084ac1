#pragma once

#include "moe64/layer.hpp"
#include "moe64/ops.hpp"

#include <cstdint>

/// Every array that a call touches, one after the other: for programs that move a call to other
/// memory, check where its memory lies, or record it.
namespace moe64 {

enum class access : std::uint8_t { read = 0, write = 1 };

/// One array of a call. Its data and its device may be changed, nothing else.
struct operand {
  char const* argument;  ///< as in the struct of the call: "weights"
  char const* member;    ///< of that argument: "scales"; empty when it is a tensor itself
  moe64::access access;
  tensor_view& tensor;
};

/// visit(operand const&) for every array that is present, in the order of the members of `args`.
/// Defined for every *_args struct of ops.hpp, and below for the calls of layer.hpp.
template <class Args, class Visit>
void for_each_operand(Args& args, Visit const& visit);

namespace operands {

template <class Visit>
void visit_tensor(char const* argument, char const* member, access how, tensor_view& tensor,
                  Visit const& visit) {
  if (tensor.present()) visit(operand{argument, member, how, tensor});
}

template <class Visit>
void visit_workspace(char const* argument, workspace& memory, Visit const& visit) {
  if (memory.bytes == 0) return;
  tensor_view bytes =
      tensor_view::contiguous(memory.data, dtype::uint8, {memory.bytes}, memory.device);
  visit(operand{argument, "", access::write, bytes});
  memory.data = bytes.data;
  memory.device = bytes.device;
}

template <class Visit>
void visit_parts(char const* argument, access how, per_part& parts, Visit const& visit) {
  visit_tensor(argument, "gate", how, parts[0], visit);
  visit_tensor(argument, "up", how, parts[1], visit);
}

template <class Visit>
void visit_plan(char const* argument, access how, routing_plan& plan, Visit const& visit) {
  visit_tensor(argument, "expert_begin", how, plan.expert_begin, visit);
  visit_tensor(argument, "row_to_slot", how, plan.row_to_slot, visit);
  visit_tensor(argument, "slot_to_row", how, plan.slot_to_row, visit);
  visit_tensor(argument, "slot_weight", how, plan.slot_weight, visit);
  visit_tensor(argument, "status", how, plan.status, visit);
}

template <class Visit>
void visit_quantized(char const* argument, quantized_view& q, Visit const& visit) {
  q.for_each_array([&](char const* member, tensor_view& tensor) {
    visit_tensor(argument, member, access::read, tensor, visit);
  });
}

template <class Visit>
void visit_weights(char const* argument, weight_stack& weights, Visit const& visit) {
  weights.for_each_part([&](quantized_view& part) { visit_quantized(argument, part, visit); });
}

template <class Visit>
void visit_projection(char const* argument, projection& p, Visit const& visit) {
  visit_weights(argument, p.weights, visit);
  visit_parts(argument, access::read, p.bias, visit);
  visit_weights(argument, p.lora.a, visit);
  visit_weights(argument, p.lora.b, visit);
}

template <class Visit>
void visit_gradients(char const* argument, projection_gradients& g, Visit const& visit) {
  visit_parts(argument, access::write, g.weights, visit);
  visit_parts(argument, access::write, g.bias, visit);
  visit_tensor(argument, "lora_a", access::write, g.lora_a, visit);
  visit_parts(argument, access::write, g.lora_b, visit);
}

template <class Visit>
void each(quantize_args& args, Visit const& visit) {
  visit_tensor("x", "", access::read, args.x, visit);
  visit_tensor("values", "", access::write, args.values, visit);
  visit_tensor("scales", "", access::write, args.scales, visit);
  visit_tensor("global", "", access::write, args.global.values, visit);
  visit_tensor("live_rows", "", access::read, args.live_rows, visit);
}

template <class Visit>
void each(dequantize_args& args, Visit const& visit) {
  visit_quantized("q", args.q, visit);
  visit_tensor("out", "", access::write, args.out, visit);
}

template <class Visit>
void each(route_args& args, Visit const& visit) {
  visit_tensor("logits", "", access::read, args.logits, visit);
  visit_tensor("selection_bias", "", access::read, args.selection_bias, visit);
  visit_tensor("expert_ids", "", access::write, args.expert_ids, visit);
  visit_tensor("weights", "", access::write, args.weights, visit);
}

template <class Visit>
void each(route_backward_args& args, Visit const& visit) {
  visit_tensor("logits", "", access::read, args.logits, visit);
  visit_tensor("expert_ids", "", access::read, args.expert_ids, visit);
  visit_tensor("d_weights", "", access::read, args.d_weights, visit);
  visit_tensor("d_logits", "", access::write, args.d_logits, visit);
}

template <class Visit>
void each(plan_args& args, Visit const& visit) {
  visit_tensor("expert_ids", "", access::read, args.expert_ids, visit);
  visit_tensor("expert_mask", "", access::read, args.expert_mask, visit);
  visit_tensor("weights", "", access::read, args.weights, visit);
  visit_plan("plan", access::write, args.plan, visit);
  visit_workspace("scratch", args.scratch, visit);
}

template <class Visit>
void each(gather_args& args, Visit const& visit) {
  visit_tensor("x", "", access::read, args.x, visit);
  visit_tensor("scales", "", access::read, args.scales, visit);
  visit_plan("plan", access::read, args.plan, visit);
  visit_tensor("rows", "", access::write, args.rows, visit);
  visit_tensor("row_scales", "", access::write, args.row_scales, visit);
}

template <class Visit>
void each(combine_args& args, Visit const& visit) {
  visit_quantized("rows", args.rows, visit);
  visit_plan("plan", access::read, args.plan, visit);
  visit_tensor("y", "", access::write, args.y, visit);
}

template <class Visit>
void each(slot_weight_gradient_args& args, Visit const& visit) {
  visit_tensor("left", "", access::read, args.left, visit);
  visit_tensor("right", "", access::read, args.right, visit);
  visit_tensor("bias_rows", "", access::read, args.bias_rows, visit);
  visit_tensor("bias", "", access::read, args.bias, visit);
  visit_plan("plan", access::read, args.plan, visit);
  visit_tensor("d_weights", "", access::write, args.d_weights, visit);
}

template <class Visit>
void each(grouped_gemm_args& args, Visit const& visit) {
  visit_quantized("x", args.x, visit);
  visit_weights("weights", args.weights, visit);
  visit_tensor("expert_begin", "", access::read, args.expert_begin, visit);
  visit_parts("bias", access::read, args.bias, visit);
  visit_tensor("low_rank", "u", access::read, args.low_rank.u, visit);
  visit_weights("low_rank", args.low_rank.weights, visit);
  visit_tensor("y", "", access::write, args.y, visit);
  visit_workspace("scratch", args.scratch, visit);
}

template <class Visit>
void each(grouped_gemm_wgrad_args& args, Visit const& visit) {
  visit_tensor("dy", "", access::read, args.dy, visit);
  visit_tensor("x", "", access::read, args.x, visit);
  visit_tensor("expert_begin", "", access::read, args.expert_begin, visit);
  visit_parts("d_weights", access::write, args.d_weights, visit);
  visit_parts("d_bias", access::write, args.d_bias, visit);
}

template <class Visit>
void each(activate_args& args, Visit const& visit) {
  visit_tensor("gate", "", access::read, args.gate, visit);
  visit_tensor("up", "", access::read, args.up, visit);
  visit_tensor("live_rows", "", access::read, args.live_rows, visit);
  visit_tensor("out", "", access::write, args.out, visit);
  visit_tensor("scales", "", access::write, args.scales, visit);
}

template <class Visit>
void each(activate_backward_args& args, Visit const& visit) {
  visit_tensor("gate", "", access::read, args.gate, visit);
  visit_tensor("up", "", access::read, args.up, visit);
  visit_tensor("d_out", "", access::read, args.d_out, visit);
  visit_plan("weighted_by", access::read, args.weighted_by, visit);
  visit_tensor("live_rows", "", access::read, args.live_rows, visit);
  visit_tensor("d_gate", "", access::write, args.d_gate, visit);
  visit_tensor("d_up", "", access::write, args.d_up, visit);
}

template <class Visit>
void each(layer_desc& layer, Visit const& visit) {
  visit_projection("gate_up", layer.gate_up, visit);
  visit_projection("down", layer.down, visit);
}

template <class Visit>
void each(forward_args& args, Visit const& visit) {
  visit_tensor("x", "", access::read, args.x, visit);
  visit_tensor("expert_ids", "", access::read, args.expert_ids, visit);
  visit_tensor("weights", "", access::read, args.weights, visit);
  visit_tensor("y", "", access::write, args.y, visit);
  visit_workspace("saved", args.saved, visit);
  visit_workspace("scratch", args.scratch, visit);
}

template <class Visit>
void each(backward_args& args, Visit const& visit) {
  visit_tensor("x", "", access::read, args.x, visit);
  visit_tensor("dy", "", access::read, args.dy, visit);
  visit_workspace("saved", args.saved, visit);
  visit_workspace("scratch", args.scratch, visit);
  visit_tensor("gradients", "x", access::write, args.gradients.x, visit);
  visit_tensor("gradients", "weights", access::write, args.gradients.weights, visit);
  visit_gradients("gradients.gate_up", args.gradients.gate_up, visit);
  visit_gradients("gradients.down", args.gradients.down, visit);
}

}  // namespace operands

template <class Args, class Visit>
void for_each_operand(Args& args, Visit const& visit) {
  operands::each(args, visit);
}

}  // namespace moe64
