#include "capi/convert.hpp"
#include "capi/guarded.hpp"

namespace moe64::capi {
namespace {

quantize_args to_cpp(moe64_quantize_args const& given, argument const& at) {
  return {.x = to_cpp(given.x, at["x"]),
          .layout = to_cpp(given.layout, at["layout"]),
          .values = to_cpp(given.values, at["values"]),
          .scales = to_cpp(given.scales, at["scales"]),
          .global = to_cpp(given.global, at["global"]),
          .live_rows = to_cpp(given.live_rows, at["live_rows"]),
          .implementation = optional_text(given.implementation)};
}

dequantize_args to_cpp(moe64_dequantize_args const& given, argument const& at) {
  return {.q = to_cpp(given.q, at["q"]),
          .out = to_cpp(given.out, at["out"]),
          .implementation = optional_text(given.implementation)};
}

route_options to_cpp(moe64_route_options const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {.score = enumerator(given.score, scoring::sigmoid, at["score"]),
          .renormalize = flag(given.renormalize, at["renormalize"]),
          .scaling = given.scaling,
          .expert_groups = given.expert_groups,
          .groups_kept = given.groups_kept,
          .group_by = enumerator(given.group_by, group_score::top2_sum, at["group_by"])};
}

route_args to_cpp(moe64_route_args const& given, argument const& at) {
  return {.logits = to_cpp(given.logits, at["logits"]),
          .selection_bias = to_cpp(given.selection_bias, at["selection_bias"]),
          .options = to_cpp(given.options, at["options"]),
          .expert_ids = to_cpp(given.expert_ids, at["expert_ids"]),
          .weights = to_cpp(given.weights, at["weights"]),
          .implementation = optional_text(given.implementation)};
}

route_backward_args to_cpp(moe64_route_backward_args const& given, argument const& at) {
  return {.logits = to_cpp(given.logits, at["logits"]),
          .options = to_cpp(given.options, at["options"]),
          .expert_ids = to_cpp(given.expert_ids, at["expert_ids"]),
          .d_weights = to_cpp(given.d_weights, at["d_weights"]),
          .d_logits = to_cpp(given.d_logits, at["d_logits"]),
          .implementation = optional_text(given.implementation)};
}

plan_args to_cpp(moe64_plan_args const& given, argument const& at) {
  return {.expert_ids = to_cpp(given.expert_ids, at["expert_ids"]),
          .expert_mask = to_cpp(given.expert_mask, at["expert_mask"]),
          .weights = to_cpp(given.weights, at["weights"]),
          .experts_total = given.experts_total,
          .first_expert = given.first_expert,
          .capacity = given.capacity,
          .plan = to_cpp(given.plan, at["plan"]),
          .scratch = to_cpp(given.scratch, at["scratch"]),
          .implementation = optional_text(given.implementation)};
}

gather_args to_cpp(moe64_gather_args const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {.x = to_cpp(given.x, at["x"]),
          .scales = to_cpp(given.scales, at["scales"]),
          .plan = to_cpp(given.plan, at["plan"]),
          .weighted = flag(given.weighted, at["weighted"]),
          .rows = to_cpp(given.rows, at["rows"]),
          .row_scales = to_cpp(given.row_scales, at["row_scales"]),
          .quantized = to_cpp(given.quantized, at["quantized"]),
          .implementation = optional_text(given.implementation)};
}

combine_args to_cpp(moe64_combine_args const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {.rows = to_cpp(given.rows, at["rows"]),
          .plan = to_cpp(given.plan, at["plan"]),
          .weighted = flag(given.weighted, at["weighted"]),
          .y = to_cpp(given.y, at["y"]),
          .implementation = optional_text(given.implementation)};
}

slot_weight_gradient_args to_cpp(moe64_slot_weight_gradient_args const& given, argument const& at) {
  return {.left = to_cpp(given.left, at["left"]),
          .right = to_cpp(given.right, at["right"]),
          .bias_rows = to_cpp(given.bias_rows, at["bias_rows"]),
          .bias = to_cpp(given.bias, at["bias"]),
          .plan = to_cpp(given.plan, at["plan"]),
          .d_weights = to_cpp(given.d_weights, at["d_weights"]),
          .implementation = optional_text(given.implementation)};
}

low_rank_term to_cpp(moe64_low_rank_term const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {.u = to_cpp(given.u, at["u"]),
          .weights = optional_stack(given.weights),
          .scaling = given.scaling};
}

grouped_gemm_args to_cpp(moe64_grouped_gemm_args const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {.x = to_cpp(given.x, at["x"]),
          .weights = required(given.weights, at["weights"]).stack,
          .expert_begin = to_cpp(given.expert_begin, at["expert_begin"]),
          .transpose = flag(given.transpose, at["transpose"]),
          .bias = to_cpp(given.bias, at["bias"]),
          .low_rank = to_cpp(given.low_rank, at["low_rank"]),
          .y = to_cpp(given.y, at["y"]),
          .implementation = optional_text(given.implementation),
          .scratch = to_cpp(given.scratch, at["scratch"])};
}
static_assert(MOE64_GROUPED_GEMM_SCRATCH_BYTES == grouped_gemm_scratch_bytes);

grouped_gemm_wgrad_args to_cpp(moe64_grouped_gemm_wgrad_args const& given, argument const& at) {
  return {.dy = to_cpp(given.dy, at["dy"]),
          .x = to_cpp(given.x, at["x"]),
          .expert_begin = to_cpp(given.expert_begin, at["expert_begin"]),
          .scaling = given.scaling,
          .parts = given.parts,
          .d_weights = to_cpp(given.d_weights, at["d_weights"]),
          .d_bias = to_cpp(given.d_bias, at["d_bias"]),
          .implementation = optional_text(given.implementation)};
}

activate_args to_cpp(moe64_activate_args const& given, argument const& at) {
  return {.activation = to_cpp(given.activation, at["activation"]),
          .gate = to_cpp(given.gate, at["gate"]),
          .up = to_cpp(given.up, at["up"]),
          .live_rows = to_cpp(given.live_rows, at["live_rows"]),
          .out = to_cpp(given.out, at["out"]),
          .scales = to_cpp(given.scales, at["scales"]),
          .quantized = to_cpp(given.quantized, at["quantized"]),
          .implementation = optional_text(given.implementation)};
}

activate_backward_args to_cpp(moe64_activate_backward_args const& given, argument const& at) {
  return {.activation = to_cpp(given.activation, at["activation"]),
          .gate = to_cpp(given.gate, at["gate"]),
          .up = to_cpp(given.up, at["up"]),
          .d_out = to_cpp(given.d_out, at["d_out"]),
          .weighted_by = given.weighted_by != nullptr
                             ? to_cpp(*given.weighted_by, at["weighted_by"])
                             : routing_plan{},
          .live_rows = to_cpp(given.live_rows, at["live_rows"]),
          .d_gate = to_cpp(given.d_gate, at["d_gate"]),
          .d_up = to_cpp(given.d_up, at["d_up"]),
          .implementation = optional_text(given.implementation)};
}

/// What every operation does: convert, check, run.
template <class Given, class Args>
moe64_status run(std::string_view name, void (*operation)(Args const&, stream), Given const* args,
                 moe64_stream const& where) {
  return guarded([&] {
    argument const at(name);
    auto const given = sized_copy(args, at["args"]);
    operation(to_cpp(given, at), to_cpp(where, at["stream"]));
  });
}

}  // namespace
}  // namespace moe64::capi

using namespace moe64::capi;

extern "C" {

moe64_status moe64_quantize(const moe64_quantize_args* args, moe64_stream stream) {
  return run("quantize", moe64::quantize, args, stream);
}

moe64_status moe64_dequantize(const moe64_dequantize_args* args, moe64_stream stream) {
  return run("dequantize", moe64::dequantize, args, stream);
}

moe64_status moe64_route(const moe64_route_args* args, moe64_stream stream) {
  return run("route", moe64::route, args, stream);
}

moe64_status moe64_route_backward(const moe64_route_backward_args* args, moe64_stream stream) {
  return run("route_backward", moe64::route_backward, args, stream);
}

moe64_status moe64_plan_bytes(int64_t tokens, int64_t top_k, int64_t experts, int64_t* bytes) {
  return guarded([&] {
    auto& out = required(bytes, argument("plan_bytes")["bytes"]);
    out = moe64::plan_bytes(tokens, top_k, experts);
  });
}

moe64_status moe64_plan_scratch_bytes(int64_t tokens, int64_t top_k, int64_t experts,
                                      moe64_device device, int64_t* bytes) {
  return guarded([&] {
    argument const at("plan_scratch_bytes");
    auto& out = required(bytes, at["bytes"]);
    out = moe64::plan_scratch_bytes(tokens, top_k, experts, to_cpp(device, at["device"]));
  });
}

moe64_status moe64_bind_plan(const moe64_workspace* memory, int64_t tokens, int64_t top_k,
                             int64_t experts, moe64_routing_plan* plan) {
  return guarded([&] {
    argument const at("bind_plan");
    auto const lent = to_cpp(required(memory, at["memory"]), at["memory"]);
    auto& out = required(plan, at["plan"]);
    out = to_c(moe64::bind_plan(lent, tokens, top_k, experts));
  });
}

moe64_status moe64_plan(const moe64_plan_args* args, moe64_stream stream) {
  return run("plan", moe64::plan, args, stream);
}

moe64_status moe64_gather(const moe64_gather_args* args, moe64_stream stream) {
  return run("gather", moe64::gather, args, stream);
}

moe64_status moe64_combine(const moe64_combine_args* args, moe64_stream stream) {
  return run("combine", moe64::combine, args, stream);
}

moe64_status moe64_slot_weight_gradient(const moe64_slot_weight_gradient_args* args,
                                        moe64_stream stream) {
  return run("slot_weight_gradient", moe64::slot_weight_gradient, args, stream);
}

moe64_status moe64_grouped_gemm(const moe64_grouped_gemm_args* args, moe64_stream stream) {
  return run("grouped_gemm", moe64::grouped_gemm, args, stream);
}

moe64_status moe64_grouped_gemm_wgrad(const moe64_grouped_gemm_wgrad_args* args,
                                      moe64_stream stream) {
  return run("grouped_gemm_wgrad", moe64::grouped_gemm_wgrad, args, stream);
}

moe64_status moe64_activate(const moe64_activate_args* args, moe64_stream stream) {
  return run("activate", moe64::activate, args, stream);
}

moe64_status moe64_activate_backward(const moe64_activate_backward_args* args,
                                     moe64_stream stream) {
  return run("activate_backward", moe64::activate_backward, args, stream);
}

}  // extern "C"
