#include "core/fail.hpp"
#include "core/verbose.hpp"
#include "layer/check.hpp"
#include "layer/fused_layer.hpp"
#include "layer/projection.hpp"
#include "layer/workspace.hpp"

namespace moe64 {
namespace {

/// The operands of a checked call, folded to matrices.
struct forward_call {
  layer_shape shape;
  compute_mode mode = compute_mode::native;
  tensor_view x, expert_ids, weights, y;
};

forward_call check_forward(layer_desc const& layer, forward_args const& args, moe64::device where) {
  checker const check("forward", where);
  check_layer(check, layer);
  check.require(args.x.present(), "x is absent");
  check.require(args.expert_ids.present(), "expert_ids is absent");
  forward_call call;
  call.x = args.x.as_matrix();
  call.expert_ids = args.expert_ids.as_matrix();
  call.shape = {call.x.extent[0], call.expert_ids.extent[1], args.x.type};
  check_shape(check, call.shape);
  check.number("x", call.x, {any_extent, layer.hidden()});
  check.shape("expert_ids", call.expert_ids, {call.shape.tokens, any_extent});
  check.type("expert_ids", call.expert_ids, {dtype::int32, dtype::int64});
  if (args.weights.present()) {
    call.weights = args.weights.as_matrix();
    check.number("weights", call.weights, {call.shape.tokens, call.shape.top_k});
  }
  check.at_least("capacity", args.capacity, -1);
  check_like_x(check, "y", args.y, args.x);
  call.y = args.y.as_matrix();
  check.no_self_overlap("y", call.y);
  check.no_overlap("y", call.y, "x", call.x);
  mode_choice const choice = resolve_mode(layer, call.shape.io, where);
  if (verbose_level() >= 2) print_mode(where, name(choice.mode), choice.reason);
  call.mode = choice.mode;
  if (verbose_level() >= 2 && call.mode == compute_mode::w8a8) {
    support const in_gather = quantizes_in_gather(layer, call.shape.io, where);
    if (!in_gather) print_refused("layer", where, "quantize in gather", in_gather.reason());
  }
  bool const keeps = args.saved.bytes > 0;
  if (keeps) {
    check_workspace("forward", "saved", args.saved, saved_bytes(layer, call.shape, where), where);
  }
  check_workspace("forward", "scratch", args.scratch,
                  forward_bytes_in(call.mode, layer, call.shape, keeps, where), where);
  for (auto const& [label, memory] :
       {std::pair{"saved", args.saved}, std::pair{"scratch", args.scratch}}) {
    check_apart(
        check, label, memory,
        {{"x", call.x}, {"expert_ids", call.expert_ids}, {"weights", call.weights}, {"y", call.y}});
  }
  check_apart(check, "saved", args.saved, {{"scratch", bytes_of(args.scratch)}});
  return call;
}

/// The rows that the first projection multiplies: gathered x, or its codes.
quantized_view gather_input(layer_desc const& layer, forward_call const& call,
                            routing_plan const& plan, forward_buffers const& b, stream where) {
  bool const on_input = layer.weight_on == weight_placement::input;
  bool const codes = call.mode == compute_mode::w8a8;
  if (!codes || layer.gate_up.lora.present()) {
    gather({.x = call.x, .plan = plan, .weighted = on_input, .rows = b.rows}, where);
  }
  if (!codes) return quantized_view::plain(b.rows);
  if (!b.x_codes.values.present()) {
    gather({.x = call.x,
            .plan = plan,
            .weighted = on_input,
            .rows = b.row_codes.values,
            .row_scales = b.row_codes.scales,
            .quantized = b.row_codes.layout},
           where);
    return b.row_codes.view();
  }
  quantize({.x = call.x,
            .layout = b.x_codes.layout,
            .values = b.x_codes.values,
            .scales = b.x_codes.scales},
           where);
  gather({.x = b.x_codes.values,
          .scales = b.x_codes.scales,
          .plan = plan,
          .rows = b.row_codes.values,
          .row_scales = b.row_codes.scales},
         where);
  return b.row_codes.view();
}

/// The rows that the second projection multiplies: the activated rows, or their codes.
quantized_view activate_input(layer_desc const& layer, saved_buffers const& saved,
                              forward_buffers const& b, stream where) {
  index_t const inter = layer.inter();
  bool const gated = is_gated(layer.activation.kind);
  bool const codes_alone = !b.activated.present();
  code_buffers const& codes = b.inner_codes;
  activate({.activation = layer.activation,
            .gate = saved.gate_up.slice(1, 0, inter),
            .up = gated ? saved.gate_up.slice(1, inter, 2 * inter) : tensor_view{},
            .live_rows = saved.plan.live_rows(),
            .out = codes_alone ? codes.values : b.activated,
            .scales = codes_alone ? codes.scales : tensor_view{},
            .quantized = codes_alone ? codes.layout : granularity::none()},
           where);
  if (!codes.values.present()) return quantized_view::plain(b.activated);
  if (!codes_alone) {
    quantize({.x = b.activated,
              .layout = codes.layout,
              .values = codes.values,
              .scales = codes.scales,
              .live_rows = saved.plan.live_rows()},
             where);
  }
  return codes.view();
}

}  // namespace

void forward(layer_desc const& layer, forward_args const& args, stream where) {
  forward_call const call = check_forward(layer, args, where.device);
  arena saved_memory{args.saved, where.device};
  arena scratch_memory{args.scratch, where.device};
  arena& keep = args.saved.bytes > 0 ? saved_memory : scratch_memory;
  saved_buffers const saved = cut_saved(keep, layer, call.shape);
  forward_buffers const b = cut_forward(scratch_memory, layer, call.shape, call.mode, where.device);
  routing_plan const& rows = saved.plan;
  if (call.mode == compute_mode::w8a8 &&
      forward_fused(layer, {call.x, call.expert_ids, call.weights, call.y, args.capacity}, saved, b,
                    where)) {
    return;
  }

  workspace const scratch = {b.scratch.data, b.scratch.span_bytes(), where.device};
  plan({.expert_ids = call.expert_ids,
        .weights = call.weights,
        .experts_total = layer.experts_total == 0 ? layer.experts() : layer.experts_total,
        .first_expert = layer.first_expert,
        .capacity = args.capacity,
        .plan = rows,
        .scratch = scratch},
       where);
  quantized_view const x_rows = gather_input(layer, call, rows, b, where);
  project(layer.gate_up,
          {.x = x_rows,
           .plain_x = b.rows,
           .low_rank = b.low_rank,
           .expert_begin = rows.expert_begin,
           .y = saved.gate_up,
           .implementation = layer.implementation,
           .scratch = scratch},
          where);
  quantized_view const inner = activate_input(layer, saved, b, where);
  project(layer.down,
          {.x = inner,
           .plain_x = b.activated,
           .low_rank = b.low_rank,
           .expert_begin = rows.expert_begin,
           .y = b.rows,
           .implementation = layer.implementation,
           .scratch = scratch},
          where);
  combine({.rows = quantized_view::plain(b.rows),
           .plan = rows,
           .weighted = layer.weight_on == weight_placement::output,
           .y = call.y},
          where);
}

}  // namespace moe64
