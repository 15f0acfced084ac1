#include "checkpoint/load/layer_memory.hpp"

namespace moe64::checkpoint {
namespace {

void* take(arena& from, index_t bytes) { return from.take(dtype::uint8, {bytes}).data; }

void* take_scales(arena& from, stack_format const& format, index_t experts) {
  index_t const pitch = scale_pitch(format);
  return take(from, pitch == 0 ? scale_slice_bytes(format) : checked_mul(experts, pitch));
}

projection_memory cut(arena& from, projection_entry const& entry, index_t experts) {
  stack_format const& format = entry.format;
  projection_memory memory;
  memory.stack.experts = experts;
  memory.stack.values = take(from, checked_mul(experts, value_slice_bytes(format)));
  if (format.layout.kind != scale_kind::none) {
    memory.stack.scales = take_scales(from, format, experts);
  }
  if (format.has_global) memory.stack.globals = from.take(dtype::f32, {experts}).data;
  if (entry.has_bias) memory.bias = take(from, checked_mul(experts, bias_slice_bytes(entry)));
  return memory;
}

tensor_view bias_of(projection_entry const& entry, projection_memory const& memory) {
  if (!entry.has_bias) return {};
  tensor_view view;
  view.type = entry.bias_type;
  view.data = static_cast<std::byte*>(memory.bias) + entry.bias.first * bits(view.type) / 8;
  view.rank = 2;
  view.extent[0] = memory.stack.experts;
  view.extent[1] = entry.format.rows;
  view.stride[0] = entry.bias.slice;
  view.stride[1] = entry.bias.row_stride;
  return view;
}

}  // namespace

index_t scale_pitch(stack_format const& format) {
  return checked_mul(format.scales.slice, bits(format.scale_type)) / 8;
}

index_t bias_slice_bytes(projection_entry const& entry) {
  return entry.has_bias ? checked_mul(entry.bias.slice, bits(entry.bias_type)) / 8 : 0;
}

layer_memory cut_layer(arena& from, expert_range const& range) {
  layer_entry const& layer = *range.layer;
  layer_memory memory;
  memory.gate = cut(from, layer.gate, range.count);
  if (layer.gate.module.fused) {
    memory.up = memory.gate;
    if (layer.up.format.expand_scale_rows) {
      memory.up.stack.scales = take_scales(from, layer.up.format, range.count);
    }
  } else if (layer.up.present()) {
    memory.up = cut(from, layer.up, range.count);
  }
  memory.down = cut(from, layer.down, range.count);
  return memory;
}

projection gate_up_of(expert_range const& range, layer_memory const& memory) {
  layer_entry const& layer = *range.layer;
  projection result;
  if (!layer.up.present()) {
    result.weights = weight_stack::single(make_view(layer.gate.format, memory.gate.stack));
    result.bias = {bias_of(layer.gate, memory.gate), {}};
    return result;
  }
  result.weights = weight_stack::gate_up(make_view(layer.gate.format, memory.gate.stack),
                                         make_view(layer.up.format, memory.up.stack));
  result.bias = {bias_of(layer.gate, memory.gate), bias_of(layer.up, memory.up)};
  return result;
}

projection down_of(expert_range const& range, layer_memory const& memory) {
  projection result;
  result.weights = weight_stack::single(make_view(range.layer->down.format, memory.down.stack));
  result.bias = {bias_of(range.layer->down, memory.down), {}};
  return result;
}

}  // namespace moe64::checkpoint
