#include "layer/fused_layer.hpp"

#include "core/verbose.hpp"
#include "layer/projection.hpp"
#include "ops/fused_layer.hpp"

#include <fmt/format.h>

namespace moe64 {
namespace {

/// Whether the calls of this forward are those of layer_calls, and there are counters for them.
support can_be_fused(layer_desc const& layer, forward_buffers const& b, moe64::device where) {
  if (layer.gate_up.lora.present() || layer.down.lora.present()) {
    return support::no("there is a low-rank term");
  }
  if (layer.weight_on == weight_placement::input) return support::no("rows are weighted");
  if (b.counters.present()) return support::yes();
  return support::no(fmt::format("nothing on {} takes {} slots of a layer at once",
                                 to_string(where), b.rows.extent[0]));
}

}  // namespace

bool forward_fused(layer_desc const& layer, forward_operands const& operands,
                   saved_buffers const& saved, forward_buffers const& b, stream where) {
  support const fits = can_be_fused(layer, b, where.device);
  if (!fits) {
    if (verbose_level() >= 2) print_refused("layer", where.device, "fused layer", fits.reason());
    return false;
  }
  routing_plan const& plan = saved.plan;
  index_t const inter = layer.inter();
  bool const gated = is_gated(layer.activation.kind);
  workspace const scratch = {b.scratch.data, b.scratch.span_bytes(), where.device};
  auto const product = [&](projection const& of, code_buffers const& x, tensor_view const& y) {
    return product_of(of, {.x = x.view(),
                           .plain_x = {},
                           .low_rank = {},
                           .expert_begin = plan.expert_begin,
                           .y = y,
                           .implementation = {}});
  };
  return run_fused_layer(
      {.plan = {.expert_ids = operands.expert_ids,
                .weights = operands.weights,
                .experts_total = layer.experts_total == 0 ? layer.experts() : layer.experts_total,
                .first_expert = layer.first_expert,
                .capacity = operands.capacity,
                .plan = plan,
                .scratch = scratch},
       .gather = {.x = operands.x,
                  .plan = plan,
                  .rows = b.row_codes.values,
                  .row_scales = b.row_codes.scales,
                  .quantized = b.row_codes.layout},
       .gate_up = product(layer.gate_up, b.row_codes, saved.gate_up),
       .activate = {.activation = layer.activation,
                    .gate = saved.gate_up.slice(1, 0, inter),
                    .up = gated ? saved.gate_up.slice(1, inter, 2 * inter) : tensor_view{},
                    .live_rows = plan.live_rows(),
                    .out = b.inner_codes.values,
                    .scales = b.inner_codes.scales,
                    .quantized = b.inner_codes.layout},
       .down = product(layer.down, b.inner_codes, b.rows),
       .combine =
           {.rows = quantized_view::plain(b.rows), .plan = plan, .weighted = true, .y = operands.y},
       .counters = {b.counters.data, b.counters.span_bytes(), where.device},
       .implementation = layer.implementation},
      where);
}

}  // namespace moe64
