#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/load/loadable.hpp"
#include "checkpoint/load/opened.hpp"

#include <algorithm>
#include <array>

namespace moe64 {
namespace checkpoint {
namespace {

projection_description describe(projection_entry const& entry) {
  projection_description result;
  module_format const& module = entry.module;
  if (module.rows == 0) return result;  // it could not be read
  stack_format const& format = entry.format;
  result.rows = format.rows;
  result.cols = format.cols;
  result.stored_values = name(module.value_type);
  if (module.scales != scale_codec::none) result.stored_scales = name(module.scale_type);
  result.type = format.type;
  result.layout = format.expand_scale_rows
                      ? granularity::block(module.block_rows, module.block_cols)
                      : format.layout;
  result.scale_type = format.scale_type;
  result.has_global = format.has_global;
  result.global = format.direction;
  result.stacked = module.stacked;
  result.fused = module.fused;
  result.transposed = module.transposed;
  result.gate_up = module.gate_up;
  result.has_bias = entry.has_bias;
  return result;
}

index_t bytes_of(tensor_entry const* tensor) { return tensor == nullptr ? 0 : tensor->bytes; }

index_t stored_bytes(projection_entry const& entry) {
  index_t sum = 0;
  for (expert_source const& source : entry.experts) {
    for (tensor_entry const* const tensor :
         {source.values, source.scales, source.global, source.bias, source.weight_shape}) {
      sum = checked_add(sum, bytes_of(tensor));
    }
    if (entry.stacked) break;  // the others are slices of the same tensors
  }
  return sum;
}

index_t matrix_elements(projection_description const& part, index_t experts) {
  return checked_mul(checked_mul(part.rows, part.cols), experts);
}

index_t parameters(projection_description const& part, index_t experts) {
  index_t const biases = part.has_bias ? checked_mul(part.rows, experts) : 0;
  return checked_add(matrix_elements(part, experts), biases);
}

/// Packed rows that end inside a byte or word do not matter here: real ones do not.
stack_extent extent_of(projection_description const& part, index_t experts, index_t parts) {
  index_t const elements = checked_mul(matrix_elements(part, experts), parts);
  return {elements, ceil_div(checked_mul(elements, bits(part.type)), 8)};
}

layer_description describe(checkpoint_reader const& from, layer_entry const& layer) {
  resolved_checkpoint const& resolved = from.internals().resolved;
  layer_description result;
  result.layer = layer.layer;
  result.mtp = layer.mtp;
  result.dialect = layer.dialect;
  result.keys = name(layer.schema);
  result.experts = layer.experts;
  result.activation = layer.activation.spec;
  result.gate = describe(layer.gate);
  result.up = describe(layer.up);
  result.down = describe(layer.down);
  result.hidden = std::max(result.gate.cols, result.down.rows);
  result.inter = std::max(result.gate.rows, result.down.cols);
  bool const fused = layer.gate.module.fused;
  for (projection_description const* const part : {&result.gate, &result.up, &result.down}) {
    result.parameters = checked_add(result.parameters, parameters(*part, layer.experts));
  }
  result.stored_bytes = checked_add(stored_bytes(layer.gate), stored_bytes(layer.down));
  if (!fused && layer.up.present())
    result.stored_bytes = checked_add(result.stored_bytes, stored_bytes(layer.up));
  result.gate_up = extent_of(result.gate, layer.experts, layer.up.present() ? 2 : 1);
  result.down_stack = extent_of(result.down, layer.experts, 1);
  auto const refused = refusal_of(resolved, layer);
  result.sound = !refused;
  if (refused) {
    result.problem = refused->text;
  } else {
    result.loaded_bytes = layer_bytes(from, {layer.layer, layer.mtp, 0, -1});
  }
  return result;
}

std::vector<stored_type> stored_types(folder const& files) {
  std::array<stored_type, file_dtype_count> all;
  for (tensor_entry const& tensor : files.tensors()) {
    stored_type& type = all[static_cast<std::size_t>(tensor.type)];
    ++type.tensors;
    type.bytes = checked_add(type.bytes, tensor.bytes);
  }
  std::vector<stored_type> result;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].tensors == 0) continue;
    all[i].name = name(static_cast<file_dtype>(i));
    result.push_back(all[i]);
  }
  std::stable_sort(
      result.begin(), result.end(),
      [](stored_type const& left, stored_type const& right) { return left.bytes > right.bytes; });
  return result;
}

index_t value_or_unstated(fact<index_t> const& stated) { return stated ? stated->value : -1; }

void describe_config(resolved_checkpoint const& resolved, checkpoint_description& into) {
  model_config const& config = resolved.config;
  into.model_type = config.model_type;
  into.text_model_type = config.text_model_type;
  into.quant_method = escaped(config.quant.method_text, 60);
  into.quant_source = config.quant.method_source;
  into.dialects.assign(resolved.dialects.begin(), resolved.dialects.end());
  into.assumed = resolved.assumed;
  into.hidden = value_or_unstated(config.geometry.hidden);
  into.inter = value_or_unstated(config.geometry.inter);
  into.experts = value_or_unstated(config.geometry.experts);
  into.top_k = value_or_unstated(config.geometry.top_k);
  into.layers = value_or_unstated(config.geometry.layers);
  into.mtp_layers = value_or_unstated(config.geometry.mtp_layers);
  into.activation = resolved.activation;
  into.scheme = activation_scheme_of(config);
}

}  // namespace
}  // namespace checkpoint

checkpoint_description describe(checkpoint_reader const& from) {
  checkpoint::folder const& files = from.internals().files;
  checkpoint::resolved_checkpoint const& resolved = from.internals().resolved;
  checkpoint_description result;
  checkpoint::describe_config(resolved, result);
  result.shards = static_cast<index_t>(files.shards().size());
  result.tensors = static_cast<index_t>(files.tensors().size());
  for (checkpoint::shard const& shard : files.shards()) {
    result.file_bytes = checked_add(result.file_bytes, shard.bytes);
  }
  result.types = checkpoint::stored_types(files);
  for (stored_type const& type : result.types) {
    result.tensor_bytes = checked_add(result.tensor_bytes, type.bytes);
  }
  for (checkpoint::layer_entry const& layer : resolved.layers) {
    result.layer_list.push_back(checkpoint::describe(from, layer));
    layer_description const& added = result.layer_list.back();
    result.expert_parameters = checked_add(result.expert_parameters, added.parameters);
    result.expert_bytes = checked_add(result.expert_bytes, added.stored_bytes);
  }
  result.weights_found = resolved.weights_found;
  result.scales_found = resolved.scales_found;
  result.matched = resolved.matched;
  result.activation_scales = resolved.activation_scales;
  result.shared_expert_tensors = resolved.shared_expert_tensors;
  result.errors = resolved.found.count(finding_level::error);
  result.warnings =
      resolved.found.count(finding_level::warning) + static_cast<index_t>(files.warnings().size());
  return result;
}

}  // namespace moe64
