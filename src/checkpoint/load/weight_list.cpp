#include "checkpoint/load/weight_list.hpp"

namespace moe64::checkpoint {
namespace {

void add_projection(layer_entry const& layer, projection_entry const& entry,
                    projection_kind projection, std::vector<weight_module>& into) {
  index_t expert = 0;
  for (expert_source const& source : entry.experts) {
    weight_module weight;
    auto const key = match_key(source.values->name);
    weight.module = key ? key->module : source.values->name;
    weight.schema = key ? key->schema : layer.schema;
    weight.format = entry.module;
    weight.values = source.values;
    weight.scales = source.scales;
    weight.global = source.global;
    weight.weight_shape = source.weight_shape;
    weight.of_experts = true;
    weight.projection = entry.module.fused ? projection_kind::gate_up : projection;
    weight.mtp = layer.mtp;
    weight.layer = layer.layer;
    weight.expert = entry.stacked ? -1 : expert++;
    into.push_back(weight);
    if (entry.stacked) return;
  }
}

}  // namespace

std::vector<weight_module> weights_of(resolved_checkpoint const& resolved) {
  std::vector<weight_module> result;
  for (layer_entry const& layer : resolved.layers) {
    if (!layer.sound) continue;
    bool const gated = layer.up.present();
    add_projection(layer, layer.gate, gated ? projection_kind::gate : projection_kind::up, result);
    if (gated && !layer.up.module.fused)
      add_projection(layer, layer.up, projection_kind::up, result);
    add_projection(layer, layer.down, projection_kind::down, result);
  }
  for (dense_entry const& dense : resolved.dense) {
    weight_module weight;
    weight.module = dense.module;
    weight.format = dense.format;
    weight.values = dense.values;
    weight.scales = dense.scales;
    weight.global = dense.global;
    result.push_back(weight);
  }
  return result;
}

}  // namespace moe64::checkpoint
