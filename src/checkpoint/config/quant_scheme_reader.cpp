#include "checkpoint/config/quant_scheme_reader.hpp"

#include "checkpoint/findings/quoted.hpp"

#include <charconv>
#include <optional>

namespace moe64::checkpoint {
namespace {

std::optional<index_t> positive(std::string_view text) {
  index_t value = 0;
  auto const [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

json_value const* member(json_value const& object, std::string_view key) {
  json_value const* const found = object.is(json_kind::object) ? object.find(key) : nullptr;
  return found != nullptr && !found->is(json_kind::null) ? found : nullptr;
}

std::string text_of(json_value const& object, std::string_view key) {
  json_value const* const value = member(object, key);
  return value == nullptr ? std::string() : std::string(value->text());
}

index_t integer_of(json_value const& object, std::string_view key) {
  json_value const* const value = member(object, key);
  return value == nullptr ? 0 : value->integer();
}

/// The scheme of one group: number format and strategy of the weights under a storage format.
quant_scheme read_group(json_value const& group, std::string_view common_format, findings& found) {
  json_value const& weights = group.at("weights");
  std::string format = text_of(group, "format");
  if (format.empty()) format = common_format;
  std::string const type = text_of(weights, "type");
  std::string const strategy = text_of(weights, "strategy");
  index_t const bits = integer_of(weights, "num_bits");
  json_value const* const symmetric = member(weights, "symmetric");
  quant_scheme scheme;
  scheme.spelling = escaped(fmt::format("{} {}{} {}", format, type, bits, strategy), 80);
  scheme.group = integer_of(weights, "group_size");
  scheme.kind = weight_scheme::unsupported;
  bool const float8 = bits == 8 && type == "float";
  if (symmetric != nullptr && !symmetric->boolean()) {
    scheme.spelling += " asymmetric";
  } else if (format == "nvfp4-pack-quantized" && scheme.group == 16) {
    scheme.kind = weight_scheme::nvfp4;
  } else if (format == "mxfp4-pack-quantized" && scheme.group == 32) {
    scheme.kind = weight_scheme::mxfp4;
  } else if (format == "mxfp8-quantized" && scheme.group == 32) {
    scheme.kind = weight_scheme::mxfp8;
  } else if (format == "pack-quantized" && bits == 4 && type == "int" && strategy == "group" &&
             scheme.group > 0) {
    scheme.kind = weight_scheme::int4_group;
  } else if (float8 && (format == "float-quantized" || format == "naive-quantized")) {
    if (strategy == "channel") scheme.kind = weight_scheme::fp8_row;
    if (strategy == "tensor") scheme.kind = weight_scheme::fp8_tensor;
    if (strategy == "block") {
      scheme.kind = weight_scheme::fp8_block;
      if (json_value const* const block = member(weights, "block_structure")) {
        read_block(*block, scheme, found);
      }
    }
  }
  return scheme;
}

void read_activations(json_value const& group, quant_declaration& into) {
  json_value const* const activations = member(group, "input_activations");
  json_value const* const dynamic =
      activations == nullptr ? nullptr : member(*activations, "dynamic");
  if (dynamic == nullptr || into.activation_scheme) return;
  // NVFP4 writes "local": the block scales are dynamic, the global one is not
  bool const is_dynamic = dynamic->is(json_kind::boolean) && dynamic->boolean();
  into.activation_scheme = stated<std::string>{is_dynamic ? "dynamic" : "static", dynamic->path()};
}

/// What is done to weights alone is in the files already, and rotated keys are of attention. What
/// is done to the inputs or outputs of modules while a model runs has no place in a dialect.
void refuse_transforms(json_value const& config, findings& found) {
  json_value const* const transforms = member(config, "transform_config");
  json_value const* const groups =
      transforms == nullptr ? nullptr : member(*transforms, "config_groups");
  if (groups == nullptr) return;
  for (json_value const& group : *groups) {
    json_value const* const applied = member(group, "apply");
    if (applied == nullptr) continue;
    for (json_value const& one : *applied) {
      std::string const location = text_of(one, "location");
      if (location.starts_with("weight_") || location == "k_cache" || location == "q_attn")
        continue;
      found.error(errc::unsupported, "unknown-scheme", "",
                  "{} transforms the {} of modules while the model runs, which moe64 does not do",
                  one.path(), location.empty() ? "numbers" : escaped(location, 40));
    }
  }
}

bool is_class_name(std::string_view target) {
  return !target.empty() && target[0] >= 'A' && target[0] <= 'Z';
}

quant_scheme scheme_of_algorithm(json_value const& object, std::string_view algorithm) {
  quant_scheme scheme;
  scheme.spelling = escaped(algorithm, 80);
  scheme.group = integer_of(object, "group_size");
  scheme.kind = weight_scheme::unsupported;
  if (algorithm == "FP8") scheme.kind = weight_scheme::fp8_tensor;
  if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") scheme.kind = weight_scheme::fp8_row;
  if (algorithm == "FP8_PB_WO" || algorithm == "FP8_BLOCK_SCALES") {
    scheme.kind = weight_scheme::fp8_block;
    scheme.block_rows = scheme.block_cols = scheme.group > 0 ? scheme.group : 128;
  }
  if (algorithm == "NVFP4" && (scheme.group == 0 || scheme.group == 16)) {
    scheme.kind = weight_scheme::nvfp4;
    scheme.group = 16;
  }
  return scheme;
}

/// Position of an equal scheme in `into.mixed`, which holds few.
std::size_t position_of(quant_scheme const& scheme, quant_declaration& into) {
  for (std::size_t i = 0; i < into.mixed.size(); ++i) {
    if (into.mixed[i] == scheme) return i;
  }
  into.mixed.push_back(scheme);
  return into.mixed.size() - 1;
}

}  // namespace

void read_block(json_value const& block, quant_scheme& scheme, findings& found) {
  std::optional<index_t> rows;
  std::optional<index_t> cols;
  if (block.is(json_kind::array) && block.size() == 2) {
    rows = positive(block.item(0).number_text());
    cols = positive(block.item(1).number_text());
  } else if (block.is(json_kind::text)) {
    auto const cross = block.text().find('x');
    if (cross != std::string_view::npos) {
      rows = positive(block.text().substr(0, cross));
      cols = positive(block.text().substr(cross + 1));
    }
  }
  if (!rows || !cols) {
    found.error(errc::invalid_argument, "config-kind", "",
                "{} is not a block of two positive extents", block.path());
    return;
  }
  scheme.block_rows = *rows;
  scheme.block_cols = *cols;
}

void read_compressed_tensors(json_value const& config, quant_declaration& into, findings& found) {
  json_value const* const groups = member(config, "config_groups");
  if (groups == nullptr || groups->size() == 0) {
    found.error(errc::invalid_argument, "config-kind", "",
                "{} declares compressed-tensors without config_groups", config.path());
    return;
  }
  refuse_transforms(config, found);
  bool has_default = false;
  std::string const format = text_of(config, "format");
  for (json_value const& group : *groups) {
    quant_scheme const scheme = read_group(group, format, found);
    read_activations(group, into);
    json_value const* const targets = member(group, "targets");
    name_rules rules;
    bool everything = groups->size() == 1 || targets == nullptr;
    if (targets != nullptr && !everything) {
      for (json_value const& target : *targets) {
        if (is_class_name(target.text())) {
          everything = true;
        } else {
          rules.add(target.text(), rule_style::modules);
        }
      }
    }
    if (!rules.empty()) into.rule_schemes.emplace_back(rules, position_of(scheme, into));
    if (!everything) continue;
    if (has_default && !(into.scheme == scheme)) {
      found.error(errc::invalid_argument, "config-conflict", "",
                  "{} has two schemes for modules of any name, '{}' and '{}'", groups->path(),
                  into.scheme.spelling, scheme.spelling);
    }
    if (!has_default) into.scheme = scheme;
    has_default = true;
  }
}

void read_modelopt(json_value const& quantization, quant_declaration& into, findings& found) {
  std::string const algorithm = text_of(quantization, "quant_algo");
  if (algorithm.empty()) return;
  quant_scheme scheme;
  if (algorithm == "MIXED_PRECISION") {
    scheme.spelling = algorithm;
    json_value const* const layers = member(quantization, "quantized_layers");
    bool const first = into.module_schemes.empty() && into.rule_schemes.empty();
    if (layers != nullptr && first) {
      for (json_value const& layer : *layers) {
        std::size_t const position =
            position_of(scheme_of_algorithm(layer, text_of(layer, "quant_algo")), into);
        if (layer.key().find('*') == std::string_view::npos) {
          into.module_schemes.emplace(layer.key(), position);
        } else {
          name_rules rule;
          rule.add(layer.key(), rule_style::globs);
          into.rule_schemes.emplace_back(std::move(rule), position);
        }
      }
    }
  } else {
    scheme = scheme_of_algorithm(quantization, algorithm);
  }
  bool const stated_before = !into.scheme.spelling.empty();
  if (stated_before && into.scheme.spelling != scheme.spelling) {
    found.error(errc::invalid_argument, "config-conflict", "",
                "{} states quant_algo '{}', another file '{}'", quantization.path(),
                scheme.spelling, into.scheme.spelling);
    return;
  }
  if (!stated_before) into.scheme = scheme;
}

}  // namespace moe64::checkpoint
