#include "checkpoint/config/quant_declaration.hpp"

#include "checkpoint/config/quant_scheme_reader.hpp"
#include "checkpoint/findings/quoted.hpp"

#include <array>

namespace moe64::checkpoint {
namespace {

quant_method method_named(std::string_view text) {
  if (text == "fp8") return quant_method::fp8;
  if (text == "compressed-tensors") return quant_method::compressed_tensors;
  if (text == "mxfp8") return quant_method::mxfp8;
  if (text == "mxfp4") return quant_method::mxfp4;
  if (text == "fbgemm_fp8") return quant_method::fbgemm_fp8;
  if (text.starts_with("modelopt")) return quant_method::modelopt;
  return quant_method::unknown;
}

class declaration_reader {
 public:
  declaration_reader(config_sources const& sources, findings& found)
      : sources_(sources), found_(found) {}

  quant_declaration read() {
    auto const language = language_objects(sources_);
    config_facts const facts(language, found_);
    std::vector<json_value const*> configs;
    for (json_value const* const object : language) {
      for (std::string_view const key : {"quantization_config", "compression_config"}) {
        json_value const* const config = object->find(key);
        if (config == nullptr || config->is(json_kind::null)) continue;
        guarded([&] { read_config(*config); });
        if (config->is(json_kind::object)) configs.push_back(config);
      }
    }
    guarded([&] { read_hf_quant_config(); });
    guarded([&] { read_params(); });

    configs.insert(configs.end(), language.begin(), language.end());
    config_facts const all(configs, found_);
    result_.scale_fmt = all.text({"scale_fmt"});
    result_.expert_dtype = all.text({"expert_dtype"});
    result_.routed_experts_quant_method = all.text({"routed_experts_quant_method"});
    if (auto scheme = all.text({"activation_scheme"})) result_.activation_scheme = scheme;
    return std::move(result_);
  }

 private:
  /// A getter that does not fit, or an expression that is refused, becomes a finding.
  template <class Body>
  void guarded(Body const& body) {
    try {
      body();
    } catch (error const& refused) {
      found_.error(refused.code(), "config-kind", "", "{}", refused.what());
    }
  }

  void read_config(json_value const& config) {
    json_value const* const method = config.find("quant_method");
    bool const algorithm = config.find("quant_algo") != nullptr;
    bool const groups = config.find("config_groups") != nullptr;
    std::string text = algorithm ? "modelopt" : groups ? "compressed-tensors" : "";
    if (method != nullptr && !method->is(json_kind::null)) text = method->text();
    if (!state_method(method_named(text), text, config.path())) return;
    read_skipped(config);
    switch (result_.method) {
      case quant_method::fp8:
        read_fp8(config);
        break;
      case quant_method::compressed_tensors:
        read_compressed_tensors(config, result_, found_);
        break;
      case quant_method::modelopt:
        read_modelopt(config, result_, found_);
        if (json_value const* const inner = config.find("quantization")) {
          read_modelopt(*inner, result_, found_);
          read_skipped(*inner);
        }
        break;
      case quant_method::mxfp8:
        result_.scheme = {weight_scheme::mxfp8, 0, 0, 32, "mxfp8"};
        break;
      case quant_method::mxfp4:
        result_.scheme = {weight_scheme::mxfp4, 0, 0, 32, "mxfp4"};
        break;
      case quant_method::fbgemm_fp8:
        result_.scheme = {weight_scheme::fp8_row, 0, 0, 0, "fbgemm_fp8"};
        break;
      case quant_method::none:
      case quant_method::mistral:
      case quant_method::unknown:
        result_.scheme = {weight_scheme::unsupported, 0, 0, 0, escaped(text, 80)};
        break;
    }
    if (json_value const* const format = config.find("format");
        format != nullptr && format->is(json_kind::text) && !result_.format) {
      result_.format = stated<std::string>{std::string(format->text()), format->path()};
    }
  }

  void read_fp8(json_value const& config) {
    json_value const* const fmt = config.find("fmt");
    if (fmt != nullptr && fmt->is(json_kind::text) && fmt->text() != "e4m3" &&
        fmt->text() != "float8_e4m3fn") {
      result_.scheme = {weight_scheme::unsupported, 0, 0, 0, "fp8 " + escaped(fmt->text(), 40)};
      return;
    }
    json_value const* const block = config.find("weight_block_size");
    quant_scheme scheme;
    if (block == nullptr || block->is(json_kind::null)) {
      scheme.kind = weight_scheme::fp8_tensor;
      scheme.spelling = "fp8 without weight_block_size";
    } else {
      scheme.kind = weight_scheme::fp8_block;
      read_block(*block, scheme, found_);
      scheme.spelling = fmt::format("fp8 block {}x{}", scheme.block_rows, scheme.block_cols);
    }
    if (!result_.scheme.spelling.empty() && !(result_.scheme == scheme)) {
      found_.error(errc::invalid_argument, "config-conflict", "", "{} states '{}', before '{}'",
                   config.path(), scheme.spelling, result_.scheme.spelling);
      return;
    }
    result_.scheme = scheme;
  }

  void read_hf_quant_config() {
    if (sources_.hf_quant_config == nullptr) return;
    json_value const& quantization = sources_.hf_quant_config->at("quantization");
    json_value const* const algorithm = quantization.find("quant_algo");
    if (algorithm == nullptr || algorithm->is(json_kind::null))
      return;  // only a cache is quantised
    if (!state_method(quant_method::modelopt, "modelopt", quantization.path())) return;
    read_modelopt(quantization, result_, found_);
    read_skipped(quantization);
  }

  void read_params() {
    if (sources_.params == nullptr || !sources_.params->is(json_kind::object)) return;
    json_value const* const quantization = sources_.params->find("quantization");
    if (quantization == nullptr || quantization->is(json_kind::null)) return;
    std::string_view const format = quantization->at("qformat_weight").text();
    if (format == "fp8_e4m3") {
      result_.mistral_native = true;
    } else {
      found_.error(errc::unsupported, "unknown-scheme", "", "{} is {}, expected 'fp8_e4m3'",
                   quantization->at("qformat_weight").path(), quoted(format));
    }
    if (result_.method != quant_method::none) return;
    result_.method = quant_method::mistral;
    result_.method_text = "mistral";
    result_.method_source = quantization->path();
    result_.scheme = {weight_scheme::fp8_tensor, 0, 0, 0, "mistral fp8_e4m3"};
  }

  /// False when another source has stated another method, which is an error.
  bool state_method(quant_method method, std::string_view text, std::string source) {
    if (result_.method == quant_method::none) {
      result_.method = method;
      result_.method_text = escaped(text, 40);
      result_.method_source = std::move(source);
      return true;
    }
    bool const same = method == result_.method &&
                      (method != quant_method::unknown || escaped(text, 40) == result_.method_text);
    if (!same) {
      found_.error(errc::invalid_argument, "config-conflict", "",
                   "{} states the method '{}', but {} states {}", result_.method_source,
                   result_.method_text, source, quoted(text, 40));
    }
    return same;
  }

  void read_skipped(json_value const& config) {
    bool const globs = result_.method == quant_method::modelopt;
    read_list(config, "modules_to_not_convert", rule_style::components);
    read_list(config, "ignored_layers", rule_style::components);
    read_list(config, "ignore", globs ? rule_style::globs : rule_style::modules);
    read_list(config, "exclude_modules", rule_style::globs);
  }

  void read_list(json_value const& config, std::string_view key, rule_style style) {
    json_value const* const list = config.find(key);
    if (list == nullptr || list->is(json_kind::null)) return;
    if (!list->is(json_kind::array)) {
      found_.error(errc::invalid_argument, "config-kind", "", "{} is not a list", list->path());
      return;
    }
    for (json_value const& entry : *list) {
      guarded([&] { result_.skipped.add(entry.text(), style); });
    }
  }

  config_sources sources_;
  findings& found_;
  quant_declaration result_;
};

}  // namespace

std::string_view name(quant_method method) noexcept {
  constexpr std::array<std::string_view, 9> names = {"none",     "fp8",     "compressed-tensors",
                                                     "mxfp8",    "mxfp4",   "fbgemm_fp8",
                                                     "modelopt", "mistral", "unknown"};
  auto const i = static_cast<std::size_t>(method);
  return i < names.size() ? names[i] : "unknown";
}

std::string_view name(weight_scheme scheme) noexcept {
  constexpr std::array<std::string_view, 9> names = {"unstated",   "unsupported", "fp8 block",
                                                     "fp8 tensor", "fp8 row",     "mxfp8",
                                                     "mxfp4",      "nvfp4",       "int4 group"};
  auto const i = static_cast<std::size_t>(scheme);
  return i < names.size() ? names[i] : "unknown";
}

quant_scheme const& quant_declaration::scheme_of(std::string_view module) const {
  if (mixed.empty()) return scheme;
  for (std::string_view above = module; !module_schemes.empty();) {
    auto const found = module_schemes.find(above);
    if (found != module_schemes.end()) return mixed[found->second];
    auto const dot = above.rfind('.');
    if (dot == std::string_view::npos) break;
    above = above.substr(0, dot);
  }
  for (auto const& [rules, position] : rule_schemes) {
    if (rules.covers(module)) return mixed[position];
  }
  return scheme;
}

quant_declaration read_quant_declaration(config_sources const& sources, findings& found) {
  return declaration_reader(sources, found).read();
}

}  // namespace moe64::checkpoint
