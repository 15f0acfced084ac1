#include "core/fail.hpp"
#include "layer/check.hpp"
#include "layer/projection.hpp"
#include "layer/workspace.hpp"

namespace moe64 {
namespace {

struct backward_call {
  layer_shape shape;
  backward_needs needs;
  tensor_view x, dy, dx;
};

backward_call check_backward(layer_desc const& layer, backward_args const& args,
                             moe64::device where) {
  checker const check("backward", where);
  check_layer(check, layer);
  check.require(args.x.present(), "x is absent");
  check.require(args.dy.present(), "dy is absent");
  backward_call call;
  call.x = args.x.as_matrix();
  call.shape = {call.x.extent[0], args.top_k, args.x.type};
  check_shape(check, call.shape);
  check.number("x", call.x, {any_extent, layer.hidden()});
  check_like_x(check, "dy", args.dy, args.x);
  call.dy = args.dy.as_matrix();
  check_gradients_exist(check, layer, args.gradients);
  check_gradient_outputs(check, layer, call.shape, args.gradients, args.x, args.dy);
  if (args.gradients.x.present()) call.dx = args.gradients.x.as_matrix();
  call.needs = needs_of(layer, args.gradients);
  check_workspace("backward", "saved", args.saved, saved_bytes(layer, call.shape, where), where);
  check_workspace("backward", "scratch", args.scratch,
                  backward_bytes(layer, call.shape, args.gradients, where), where);
  for (auto const& [label, memory] :
       {std::pair{"saved", args.saved}, std::pair{"scratch", args.scratch}}) {
    check_apart(check, label, memory,
                {{"x", call.x},
                 {"dy", call.dy},
                 {"gradient of x", call.dx},
                 {"gradient of weights", args.gradients.weights}});
  }
  check_apart(check, "saved", args.saved, {{"scratch", bytes_of(args.scratch)}});
  return call;
}

}  // namespace

void backward(layer_desc const& layer, backward_args const& args, stream where) {
  backward_call const call = check_backward(layer, args, where.device);
  backward_needs const& needs = call.needs;
  arena saved_memory{args.saved, where.device};
  arena scratch_memory{args.scratch, where.device};
  saved_buffers const saved = cut_saved(saved_memory, layer, call.shape);
  backward_buffers const b = cut_backward(scratch_memory, layer, call.shape, needs);
  routing_plan const& rows = saved.plan;
  bool const on_output = layer.weight_on == weight_placement::output;
  bool const gated = is_gated(layer.activation.kind);
  index_t const inter = layer.inter();
  tensor_view const gate = saved.gate_up.slice(1, 0, inter);
  tensor_view const up = gated ? saved.gate_up.slice(1, inter, 2 * inter) : tensor_view{};
  auto const gather_rows = [&](tensor_view const& tokens, bool weighted, tensor_view const& out) {
    gather({.x = tokens, .plan = rows, .weighted = weighted, .rows = out}, where);
  };

  // Through down: the slot weight is left out here, so that its own gradient is a dot product of
  // two rows and the output of down never has to be kept.
  gather_rows(call.dy, false, b.dy_rows);
  project_backward(layer.down,
                   {.dy = b.dy_rows,
                    .d_low_rank = b.d_low_rank,
                    .expert_begin = rows.expert_begin,
                    .dx = b.d_inner,
                    .has_dyb = false,
                    .implementation = layer.implementation},
                   where);
  if (needs.activated()) {
    activate({.activation = layer.activation,
              .gate = gate,
              .up = up,
              .live_rows = rows.live_rows(),
              .out = b.activated},
             where);
  }
  if (needs.slot_weights_output) {
    bool const bias = layer.down.bias[0].present();
    slot_weight_gradient({.left = b.d_inner,
                          .right = b.activated,
                          .bias_rows = bias ? b.dy_rows : tensor_view{},
                          .bias = layer.down.bias[0],
                          .plan = rows,
                          .d_weights = args.gradients.weights},
                         where);
  }
  if (needs.down_parameters) {
    if (on_output) gather_rows(call.dy, true, b.dy_rows);
    project_parameters(layer.down,
                       {.x = b.activated,
                        .dy = b.dy_rows,
                        .low_rank = b.low_rank,
                        .d_low_rank = b.d_low_rank,
                        .expert_begin = rows.expert_begin,
                        .implementation = layer.implementation},
                       args.gradients.down, where);
  }
  if (!needs.d_gate_up()) return;

  // Through the activation and gate_up.
  activate_backward({.activation = layer.activation,
                     .gate = gate,
                     .up = up,
                     .d_out = b.d_inner,
                     .weighted_by = on_output ? rows : routing_plan{},
                     .live_rows = rows.live_rows(),
                     .d_gate = b.d_gate_up.slice(1, 0, inter),
                     .d_up = gated ? b.d_gate_up.slice(1, inter, 2 * inter) : tensor_view{}},
                    where);
  if (needs.gate_up_parameters) {
    gather_rows(call.x, !on_output, b.x_rows);
    project_parameters(layer.gate_up,
                       {.x = b.x_rows,
                        .dy = b.d_gate_up,
                        .low_rank = b.low_rank,
                        .d_low_rank = b.d_low_rank,
                        .expert_begin = rows.expert_begin,
                        .implementation = layer.implementation},
                       args.gradients.gate_up, where);
  }
  if (!needs.d_rows()) return;
  tensor_view const& dx_rows = b.dy_rows;
  project_backward(layer.gate_up,
                   {.dy = b.d_gate_up,
                    .d_low_rank = b.d_low_rank,
                    .expert_begin = rows.expert_begin,
                    .dx = dx_rows,
                    .has_dyb = args.gradients.gate_up.lora_a.present(),
                    .implementation = layer.implementation},
                   where);
  if (needs.slot_weights_input) {
    gather_rows(call.x, false, b.x_rows);
    slot_weight_gradient(
        {.left = dx_rows, .right = b.x_rows, .plan = rows, .d_weights = args.gradients.weights},
        where);
  }
  if (needs.x) {
    combine({.rows = quantized_view::plain(dx_rows),
             .plan = rows,
             .weighted = !on_output,
             .y = call.dx},
            where);
  }
}

}  // namespace moe64
