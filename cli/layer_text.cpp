#include "layer_text.hpp"

#include "fmt/format.h"
#include "terminal.hpp"

#include <array>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

std::string_view name_of(global_scale::direction direction) {
  return direction == global_scale::direction::divide ? "divide" : "multiply";
}

json to_json(projection_description const& part) {
  if (part.stored_values.empty()) return nullptr;
  json object;
  object["rows"] = part.rows;
  object["cols"] = part.cols;
  object["stored_values"] = part.stored_values;
  object["stored_scales"] = part.stored_scales;
  object["type"] = moe64::name(part.type);
  object["scale"] = to_string(part.layout);
  object["scale_type"] = part.stored_scales.empty() ? "" : moe64::name(part.scale_type);
  object["global_scale"] = part.has_global ? name_of(part.global) : "";
  object["stacked"] = part.stacked;
  object["fused"] = part.fused;
  object["transposed"] = part.transposed;
  object["gate_up"] = part.fused ? moe64::name(part.gate_up) : "";
  object["bias"] = part.has_bias;
  return object;
}

json to_json(stack_extent const& stack) {
  return {{"elements", stack.elements},
          {"bytes", stack.bytes},
          {"passes_int32_elements", stack.passes_int32_elements()},
          {"passes_uint32_bytes", stack.passes_uint32_bytes()}};
}

json stated(index_t extent) { return extent < 0 ? json(nullptr) : json(extent); }

json to_json(activation_spec const& spec) {
  json object;
  object["kind"] = moe64::name(spec.kind);
  if (spec.kind == activation::gptoss_glu) object["alpha"] = spec.alpha;
  if (has_limit(spec.kind)) {
    object["limit"] = spec.limit;
  }
  return object;
}

void add_limit(std::string& text, char const* stack, stack_extent const& extent) {
  if (!extent.passes_int32_elements() && !extent.passes_uint32_bytes()) return;
  text += fmt::format("{}{} {} elements, {}", text.empty() ? "" : "; ", stack,
                      human_count(static_cast<double>(extent.elements)),
                      human_bytes(static_cast<double>(extent.bytes)));
}

}  // namespace

std::string counted(index_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string human_count(double count) {
  constexpr std::array<char const*, 5> units{"", " k", " M", " G", " T"};
  std::size_t unit = 0;
  while (count >= 1000.0 && unit + 1 < units.size()) {
    count /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f}", count) : fmt::format("{:.2f}{}", count, units[unit]);
}

std::string format_text(projection_description const& part) {
  if (part.stored_values.empty()) return "unreadable";
  std::string text(moe64::name(part.type));
  if (!part.stored_scales.empty()) {
    text += fmt::format(" {} {}", to_string(part.layout), moe64::name(part.scale_type));
  }
  if (part.has_global) {
    text += part.global == global_scale::direction::divide ? ", / global" : ", * global";
  }
  if (part.stacked) text += ", stack";
  if (part.transposed) text += ", transposed";
  if (part.fused) text += fmt::format(", {}", moe64::name(part.gate_up));
  if (part.has_bias) text += ", bias";
  return text;
}

std::string gate_up_text(layer_description const& layer) {
  std::string const gate = format_text(layer.gate);
  std::string const up = format_text(layer.up);
  return gate == up || layer.up.rows == 0 ? gate : gate + " | " + up;
}

std::string layer_text(layer_description const& layer) {
  return fmt::format("{}layer {}", layer.mtp ? "MTP " : "", layer.layer);
}

std::string limits_text(layer_description const& layer) {
  std::string text;
  add_limit(text, "gate_up", layer.gate_up);
  add_limit(text, "down", layer.down_stack);
  return text;
}

json to_json(layer_description const& layer) {
  json object;
  object["layer"] = layer.layer;
  object["mtp"] = layer.mtp;
  object["sound"] = layer.sound;
  if (!layer.sound) object["problem"] = layer.problem;
  object["dialect"] = layer.dialect;
  object["keys"] = layer.keys;
  object["experts"] = layer.experts;
  object["hidden"] = layer.hidden;
  object["inter"] = layer.inter;
  object["parameters"] = layer.parameters;
  object["stored_bytes"] = layer.stored_bytes;
  object["loaded_bytes"] = layer.loaded_bytes;
  object["activation"] = layer.activation ? to_json(*layer.activation) : json(nullptr);
  object["gate"] = to_json(layer.gate);
  object["up"] = to_json(layer.up);
  object["down"] = to_json(layer.down);
  object["stacks"] = {{"gate_up", to_json(layer.gate_up)}, {"down", to_json(layer.down_stack)}};
  return object;
}

json to_json(checkpoint_description const& described, std::vector<finding> const& findings) {
  json object;
  object["model_type"] = described.model_type;
  object["text_model_type"] = described.text_model_type;
  object["quant_method"] = described.quant_method;
  object["quant_source"] = described.quant_source;
  object["dialects"] = described.dialects;
  object["assumed"] = described.assumed;
  object["geometry"] = {
      {"hidden", stated(described.hidden)},   {"inter", stated(described.inter)},
      {"experts", stated(described.experts)}, {"top_k", stated(described.top_k)},
      {"layers", stated(described.layers)},   {"mtp_layers", stated(described.mtp_layers)}};
  object["activation"] = described.activation ? to_json(*described.activation) : json(nullptr);
  object["activation_scheme"] =
      described.scheme == activation_scheme::dynamic ? "dynamic" : "unstated";
  object["totals"] = {{"shards", described.shards},
                      {"file_bytes", described.file_bytes},
                      {"tensors", described.tensors},
                      {"tensor_bytes", described.tensor_bytes},
                      {"expert_parameters", described.expert_parameters},
                      {"expert_bytes", described.expert_bytes},
                      {"weights_found", described.weights_found},
                      {"scales_found", described.scales_found},
                      {"matched", described.matched},
                      {"activation_scales", described.activation_scales},
                      {"shared_expert_tensors", described.shared_expert_tensors},
                      {"errors", described.errors},
                      {"warnings", described.warnings}};
  object["types"] = json::array();
  for (stored_type const& type : described.types) {
    object["types"].push_back(
        {{"type", type.name}, {"tensors", type.tensors}, {"bytes", type.bytes}});
  }
  object["layers"] = json::array();
  for (layer_description const& layer : described.layer_list) {
    object["layers"].push_back(to_json(layer));
  }
  object["findings"] = json::array();
  for (finding const& found : findings) {
    object["findings"].push_back({{"level", name(found.level)},
                                  {"rule", found.rule},
                                  {"tensor", found.tensor},
                                  {"text", found.text}});
  }
  return object;
}

}  // namespace moe64::cli
