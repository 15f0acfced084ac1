#include "layer/workspace.hpp"

#include "layer/check.hpp"
#include "ops/fused_layer.hpp"
#include "ops/preferred.hpp"

#include <algorithm>

namespace moe64 {
namespace {

index_t capacity_of(layer_shape const& shape) { return checked_mul(shape.tokens, shape.top_k); }

index_t largest_rank(layer_desc const& layer) {
  index_t rank = 0;
  for (projection const* p : {&layer.gate_up, &layer.down}) {
    if (p->lora.present()) rank = std::max(rank, p->lora.a.rows());
  }
  return rank;
}

bool has_lora(layer_desc const& layer) {
  return layer.gate_up.lora.present() || layer.down.lora.present();
}

routing_plan cut_plan(arena& memory, layer_desc const& layer, layer_shape const& shape) {
  index_t const bytes = plan_bytes(shape.tokens, shape.top_k, layer.experts());
  tensor_view const piece = memory.take(dtype::uint8, {bytes});
  if (piece.data == nullptr) return {};
  return bind_plan({piece.data, bytes, piece.device}, shape.tokens, shape.top_k, layer.experts());
}

code_buffers cut_codes(arena& memory, weight_stack const& weights, index_t rows) {
  code_buffers codes;
  codes.layout = activation_granularity(weights.layout());
  codes.values = memory.take(weights.type() == dtype::int8 ? dtype::int8 : dtype::e4m3,
                             {rows, weights.cols()});
  codes.scales = memory.take(dtype::f32, {rows, codes.layout.grid_cols(weights.cols())});
  return codes;
}

bool any_present(projection_gradients const& g) {
  return g.weights[0].present() || g.weights[1].present() || g.bias[0].present() ||
         g.bias[1].present() || g.lora_a.present() || g.lora_b[0].present() ||
         g.lora_b[1].present();
}

void check_query(layer_desc const& layer, layer_shape const& shape, moe64::device where) {
  checker const check("layer", where);
  check_layer(check, layer);
  check_shape(check, shape);
}

}  // namespace

backward_needs needs_of(layer_desc const& layer, layer_gradients const& gradients) {
  bool const on_input = layer.weight_on == weight_placement::input;
  backward_needs needs;
  needs.slot_weights_output = gradients.weights.present() && !on_input;
  needs.slot_weights_input = gradients.weights.present() && on_input;
  needs.x = gradients.x.present();
  needs.gate_up_parameters = any_present(gradients.gate_up);
  needs.down_parameters = any_present(gradients.down);
  return needs;
}

// The backend is asked about one row in memory that is nowhere, however many there will be.
support quantizes_in_gather(layer_desc const& layer, dtype io, moe64::device where) {
  if (layer.weight_on == weight_placement::input) return support::yes();
  arena nowhere{where};
  code_buffers const rows = cut_codes(nowhere, layer.gate_up.weights, 1);
  return takes_preferred(gather_args{.x = nowhere.take(io, {1, layer.hidden()}),
                                     .plan = {},
                                     .rows = rows.values,
                                     .row_scales = rows.scales,
                                     .quantized = rows.layout},
                         where);
}

saved_buffers cut_saved(arena& memory, layer_desc const& layer, layer_shape const& shape) {
  saved_buffers buffers;
  buffers.plan = cut_plan(memory, layer, shape);
  buffers.gate_up = memory.take(shape.io, {capacity_of(shape), layer.gate_up.weights.rows()});
  return buffers;
}

forward_buffers cut_forward(arena& memory, layer_desc const& layer, layer_shape const& shape,
                            compute_mode mode, moe64::device where) {
  index_t const capacity = capacity_of(shape);
  forward_buffers buffers;
  index_t const of_plan = plan_scratch_bytes(shape.tokens, shape.top_k, layer.experts(), where);
  buffers.scratch = memory.take(dtype::uint8, {std::max(of_plan, grouped_gemm_scratch_bytes)});
  buffers.rows = memory.take(shape.io, {capacity, layer.hidden()});
  bool const codes = mode == compute_mode::w8a8;
  if (!codes || layer.down.lora.present()) {
    buffers.activated = memory.take(shape.io, {capacity, layer.inter()});
  }
  if (has_lora(layer)) buffers.low_rank = memory.take(shape.io, {capacity, largest_rank(layer)});
  if (codes) {
    if (!quantizes_in_gather(layer, shape.io, where)) {
      buffers.x_codes = cut_codes(memory, layer.gate_up.weights, shape.tokens);
    }
    buffers.row_codes = cut_codes(memory, layer.gate_up.weights, capacity);
    buffers.inner_codes = cut_codes(memory, layer.down.weights, capacity);
    index_t const counters = layer_counter_bytes(capacity, layer.hidden(), layer.inter(), where);
    if (counters > 0) buffers.counters = memory.take(dtype::uint8, {counters});
  }
  return buffers;
}

backward_buffers cut_backward(arena& memory, layer_desc const& layer, layer_shape const& shape,
                              backward_needs const& needs) {
  index_t const capacity = capacity_of(shape);
  backward_buffers buffers;
  buffers.dy_rows = memory.take(shape.io, {capacity, layer.hidden()});
  buffers.d_inner = memory.take(shape.io, {capacity, layer.inter()});
  if (needs.activated()) buffers.activated = memory.take(shape.io, {capacity, layer.inter()});
  if (needs.x_rows()) buffers.x_rows = memory.take(shape.io, {capacity, layer.hidden()});
  if (needs.d_gate_up()) {
    buffers.d_gate_up = memory.take(shape.io, {capacity, layer.gate_up.weights.rows()});
  }
  if (has_lora(layer)) {
    buffers.low_rank = memory.take(shape.io, {capacity, largest_rank(layer)});
    buffers.d_low_rank = memory.take(shape.io, {capacity, largest_rank(layer)});
  }
  return buffers;
}

index_t forward_bytes_in(compute_mode mode, layer_desc const& layer, layer_shape const& shape,
                         bool keeps_saved, moe64::device where) {
  arena measure{where};
  if (!keeps_saved) static_cast<void>(cut_saved(measure, layer, shape));
  static_cast<void>(cut_forward(measure, layer, shape, mode, where));
  return measure.bytes();
}

index_t saved_bytes(layer_desc const& layer, layer_shape const& shape, moe64::device where) {
  check_query(layer, shape, where);
  arena measure{where};
  static_cast<void>(cut_saved(measure, layer, shape));
  return measure.bytes();
}

index_t forward_bytes(layer_desc const& layer, layer_shape const& shape, bool keeps_saved,
                      moe64::device where) {
  check_query(layer, shape, where);
  compute_mode const mode = resolve_mode(layer, shape.io, where).mode;
  return forward_bytes_in(mode, layer, shape, keeps_saved, where);
}

index_t backward_bytes(layer_desc const& layer, layer_shape const& shape,
                       layer_gradients const& gradients, moe64::device where) {
  check_query(layer, shape, where);
  check_gradients_exist(checker("layer", where), layer, gradients);
  arena measure{where};
  static_cast<void>(cut_backward(measure, layer, shape, needs_of(layer, gradients)));
  return measure.bytes();
}

routing_plan saved_plan(layer_desc const& layer, layer_shape const& shape, workspace saved) {
  check_workspace("saved_plan", "saved", saved, saved_bytes(layer, shape, saved.device),
                  saved.device);
  arena memory{saved, saved.device};
  return cut_saved(memory, layer, shape).plan;
}

}  // namespace moe64
