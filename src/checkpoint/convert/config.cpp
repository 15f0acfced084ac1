#include "checkpoint/convert/config.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/json/edit.hpp"
#include "checkpoint/json/write.hpp"
#include "core/fail.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

std::string text_list(std::vector<std::string> const& texts, std::string_view indent) {
  if (texts.empty()) return "[]";
  std::string out = "[";
  for (std::size_t i = 0; i < texts.size(); ++i) {
    out += i == 0 ? "\n" : ",\n";
    out += indent;
    out += "  ";
    append_json_text(out, texts[i]);
  }
  return out + "\n" + std::string(indent) + "]";
}

std::string block_declaration(conversion_plan const& plan) {
  std::string out = R"({
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "modules_to_not_convert": )";
  out += text_list(plan.plain_modules, "    ");
  out += R"(,
    "quant_method": "fp8",
)";
  if (plan.scale_type == dtype::e8m0) out += "    \"scale_fmt\": \"ue8m0\",\n";
  return out + R"(    "weight_block_size": [128, 128]
  })";
}

std::string row_declaration(conversion_plan const& plan) {
  std::string out = R"({
    "config_groups": {
      "group_0": {
        "input_activations": {
          "dynamic": true,
          "num_bits": 8,
          "strategy": "token",
          "symmetric": true,
          "type": "float"
        },
        "targets": ["Linear"],
        "weights": {
          "dynamic": false,
          "num_bits": 8,
          "strategy": "channel",
          "symmetric": true,
          "type": "float"
        }
      }
    },
    "format": "float-quantized",
    "ignore": )";
  out += text_list(plan.plain_modules, "    ");
  return out + R"(,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed"
  })";
}

std::string declaration(conversion_plan const& plan) {
  return plan.to == convert_target::fp8_block ? block_declaration(plan) : row_declaration(plan);
}

/// config.json and the objects in it that describe the language model.
std::vector<json_value const*> config_objects(json_value const& config) {
  return language_objects({&config, nullptr, nullptr});
}

std::string edit_config(json_value const& config, conversion_plan const& plan) {
  std::vector<json_edit> edits;
  bool declared = false;
  bool const fp8 = is_fp8(plan.to);
  for (json_value const* const object : config_objects(config)) {
    for (json_value const& member : *object) {
      std::string_view const key = member.key();
      bool const of_type = key == "torch_dtype" || key == "dtype";
      if (plan.converted_modules == 0 && !of_type) continue;  // what is declared is still true
      if (key == "quantization_config" || key == "compression_config") {
        bool const replaced = fp8 && !declared && key == "quantization_config";
        edits.push_back({&member, replaced ? declaration(plan) : std::string()});
        declared = declared || replaced;
      } else if (key == "expert_dtype") {
        edits.push_back({&member, fp8 ? "\"fp8\"" : ""});
      } else if (key == "routed_experts_quant_method" || key == "scale_fmt") {
        edits.push_back({&member, ""});
      } else if (!fp8 && of_type && member.is(json_kind::text)) {
        bool const bf16 = plan.to == convert_target::bf16;
        edits.push_back({&member, bf16 ? "\"bfloat16\"" : "\"float16\""});
      }
    }
  }
  std::vector<std::pair<std::string, std::string>> appended;
  if (fp8 && !declared) appended.emplace_back("quantization_config", declaration(plan));
  return edited(config, edits, appended);
}

std::string edit_params(json_value const& params) {
  std::vector<json_edit> edits;
  if (json_value const* const quantization = params.find("quantization")) {
    edits.push_back({quantization, ""});
  }
  return edited(params, edits, {});
}

/// What an assumption says about the layout of stacks and extents still holds for the output; what
/// it says about scales does not.
assumptions still_true(std::vector<std::string> const& assumed) {
  assumptions result = parse_assumptions(assumed);
  result.dialect.reset();
  result.scale.reset();
  result.block_rows.reset();
  result.block_cols.reset();
  result.group.reset();
  result.grid.reset();
  return result;
}

}  // namespace

converted_configs convert_configs(folder const& files, conversion_plan const& plan) {
  converted_configs result;
  bool const declares = plan.converted_modules > 0;
  bool const changed = declares || plan.recast_tensors > 0;
  if (files.config() != nullptr) {
    result.config = changed ? edit_config(*files.config(), plan) : edited(*files.config(), {}, {});
  }
  if (files.params() != nullptr) {
    result.params = declares ? edit_params(*files.params()) : edited(*files.params(), {}, {});
  }
  return result;
}

void require_readable(conversion_plan const& plan, converted_configs const& configs,
                      std::vector<std::string> const& assumed) {
  std::vector<tensor_entry> tensors;
  for (planned_shard const& shard : plan.shards) {
    for (new_tensor const& tensor : shard.tensors) {
      index_t bytes = 0;
      static_cast<void>(count_bytes(tensor.type, tensor.shape, bytes));
      tensors.push_back({tensor.name, tensor.type, tensor.shape, 0, 0, bytes});
    }
  }
  std::sort(tensors.begin(), tensors.end(),
            [](tensor_entry const& a, tensor_entry const& b) { return a.name < b.name; });
  auto const twice =
      std::adjacent_find(tensors.begin(), tensors.end(),
                         [](auto const& a, auto const& b) { return a.name == b.name; });
  if (twice != tensors.end()) {
    fail(errc::unsupported, "[convert] two tensors of the result would be named {}",
         quoted(twice->name));
  }
  json_limits limits;
  limits.bytes = index_t{64} << 20;
  limits.non_finite = true;
  std::unique_ptr<json_document const> config;
  std::unique_ptr<json_document const> params;
  config_sources sources;
  if (configs.config) {
    config = parse_json(*configs.config, "config.json", limits);
    sources.config = &config->root();
  }
  if (configs.params) {
    params = parse_json(*configs.params, "params.json", limits);
    sources.params = &params->root();
  }
  resolve_options options;
  options.assumed = still_true(assumed);
  resolved_checkpoint const result = resolve(tensors, sources, options);
  for (finding const& found : result.found.kept()) {
    if (found.level != finding_level::error) continue;
    fail(errc::unsupported, "[convert] no dialect states the result as {}: {}", name(plan.to),
         found.text);
  }
  if (result.matched != plan.quantised_outputs) {
    fail(errc::unsupported,
         "[convert] {} quantised weights would be written as {}, but {} could be read back",
         plan.quantised_outputs, name(plan.to), result.matched);
  }
}

}  // namespace moe64::checkpoint
