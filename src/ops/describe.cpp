#include "ops/describe.hpp"

#include "moe64/problem.hpp"

namespace moe64 {
namespace {

void set_format(problem& p, dtype value, dtype scale, granularity const& layout) {
  p.weight = format_of(value, scale);
  p.scale = layout;
  if (layout.kind != scale_kind::none) p.scale_dtype = scale;
}

void set_plan(problem& p, routing_plan const& plan) {
  p.tokens = plan.tokens;
  p.top_k = plan.top_k;
  p.experts = plan.experts;
}

void set_io(problem& p, dtype type) {
  if (is_float(type)) p.io = type;
}

problem problem_of(operation op, std::string_view implementation) {
  problem p;
  p.op = op;
  p.impl = implementation;
  return p;
}

/// A stack [experts, rows, cols] as weights of `experts` experts that are not gated.
void set_matrix(problem& p, tensor_view const& stack) {
  tensor_view const s = stack.rank == 2 ? stack.as_stack() : stack;
  p.experts = s.extent[0];
  p.inter = s.extent[1];
  p.hidden = s.extent[2];
  p.act.kind = activation::silu;
}

}  // namespace

std::string describe(quantize_args const& args) {
  problem p = problem_of(operation::quantize, args.implementation);
  set_matrix(p, args.x);
  set_io(p, args.x.type);
  set_format(p, args.values.type, args.scales.type, args.layout);
  return to_string(p);
}

std::string describe(dequantize_args const& args) {
  problem p = problem_of(operation::dequantize, args.implementation);
  set_matrix(p, args.q.values());
  p.experts = args.q.experts();
  set_io(p, args.out.type);
  set_format(p, args.q.type(), args.q.scales().type, args.q.layout());
  return to_string(p);
}

std::string describe(route_args const& args) {
  problem p = problem_of(operation::route, args.implementation);
  p.tokens = args.logits.extent[0];
  p.experts = args.logits.extent[1];
  p.top_k = args.expert_ids.extent[1];
  set_io(p, args.logits.type);
  return to_string(p);
}

std::string describe(route_backward_args const& args) {
  problem p = problem_of(operation::route, args.implementation);
  p.backward = true;
  p.tokens = args.logits.extent[0];
  p.experts = args.logits.extent[1];
  p.top_k = args.expert_ids.extent[1];
  set_io(p, args.logits.type);
  return to_string(p);
}

std::string describe(plan_args const& args) {
  problem p = problem_of(operation::plan, args.implementation);
  set_plan(p, args.plan);
  return to_string(p);
}

std::string describe(gather_args const& args) {
  problem p = problem_of(operation::gather, args.implementation);
  set_plan(p, args.plan);
  p.hidden = args.x.extent[1];
  set_io(p, args.x.type);
  if (args.quantized.kind != scale_kind::none) {
    p.quantized = true;
    set_format(p, args.rows.type, args.row_scales.type, args.quantized);
  }
  return to_string(p);
}

std::string describe(combine_args const& args) {
  problem p = problem_of(operation::combine, args.implementation);
  set_plan(p, args.plan);
  p.hidden = args.y.extent[1];
  set_io(p, args.y.type);
  return to_string(p);
}

std::string describe(slot_weight_gradient_args const& args) {
  problem p = problem_of(operation::combine, args.implementation);
  p.backward = true;
  set_plan(p, args.plan);
  p.hidden = args.left.extent[1];
  set_io(p, args.left.type);
  return to_string(p);
}

std::string describe(grouped_gemm_args const& args) {
  problem p = problem_of(operation::grouped_gemm, args.implementation);
  p.tokens = args.y.extent[0];
  p.top_k = 1;
  p.experts = args.weights.experts();
  p.inter = args.weights.part_rows();
  p.hidden = args.weights.cols();
  if (args.weights.parts() == 1) p.act.kind = activation::silu;
  set_io(p, args.y.type);
  set_format(p, args.weights.type(), args.weights.part(0).scales().type, args.weights.layout());
  p.mode = !args.x.is_plain() ? compute_mode::w8a8 : compute_mode::automatic;
  p.backward = args.transpose;
  p.bias = args.bias[0].present();
  p.lora = args.low_rank.u.present() ? args.low_rank.u.extent[1] : 0;
  return to_string(p);
}

std::string describe(grouped_gemm_wgrad_args const& args) {
  problem p = problem_of(operation::grouped_gemm_wgrad, args.implementation);
  p.tokens = args.dy.extent[0];
  p.top_k = 1;
  p.experts = args.expert_begin.extent[0] - 1;
  p.inter = args.dy.extent[1] / args.parts;
  if (args.x.present()) p.hidden = args.x.extent[1];
  if (args.parts == 1) p.act.kind = activation::silu;
  set_io(p, args.dy.type);
  set_format(p, args.dy.type, args.dy.type, granularity::none());
  return to_string(p);
}

std::string describe(activate_args const& args) {
  problem p = problem_of(operation::activate, args.implementation);
  p.tokens = args.gate.extent[0];
  p.top_k = 1;
  p.inter = args.gate.extent[1];
  p.act = args.activation;
  set_io(p, args.gate.type);
  if (args.quantized.kind != scale_kind::none) {
    p.quantized = true;
    set_format(p, args.out.type, args.scales.type, args.quantized);
  }
  return to_string(p);
}

std::string describe(activate_backward_args const& args) {
  problem p = problem_of(operation::activate, args.implementation);
  p.backward = true;
  p.tokens = args.gate.extent[0];
  p.top_k = 1;
  p.inter = args.gate.extent[1];
  p.act = args.activation;
  set_io(p, args.gate.type);
  return to_string(p);
}

std::string describe(layer_calls const& calls) {
  problem p = problem_of(operation::layer, calls.implementation);
  set_plan(p, calls.plan.plan);
  weight_stack const& weights = calls.gate_up.weights;
  p.hidden = weights.cols();
  p.inter = weights.part_rows();
  p.act = calls.activate.activation;
  set_io(p, calls.gather.x.type);
  set_format(p, weights.type(), weights.part(0).scales().type, weights.layout());
  p.mode = compute_mode::w8a8;
  p.bias = calls.gate_up.bias[0].present();
  return to_string(p);
}

}  // namespace moe64
