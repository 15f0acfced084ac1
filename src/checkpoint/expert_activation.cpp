#include "checkpoint/model_config.hpp"
#include "checkpoint/quoted.hpp"

#include <cmath>

namespace moe64::checkpoint {
namespace {

/// A parameter that the family needs, or an error.
std::optional<float> parameter(fact<double> const& stated, std::string_view key,
                               model_config const& config, diagnostics& found) {
  if (!stated) {
    found.error(errc::invalid_argument, "missing-activation-parameter", "",
                "models of type '{}' clamp their activation, but the config has no {}",
                config.model_type, key);
    return std::nullopt;
  }
  if (!(stated->value > 0) || !std::isfinite(stated->value)) {
    found.error(errc::invalid_argument, "missing-activation-parameter", "",
                "{} is {}, expected a positive number", stated->source, stated->value);
    return std::nullopt;
  }
  return static_cast<float>(stated->value);
}

}  // namespace

std::optional<activation_spec> expert_activation(model_config const& config, diagnostics& found) {
  bool const gptoss =
      config.is_type("gpt_oss") || config.is_type("minimax_m3") || config.is_type("minimax_m3_vl");
  if (gptoss) {
    auto const limit = parameter(config.swiglu_limit, "swiglu_limit", config, found);
    if (!limit) return std::nullopt;
    activation_spec spec{activation::gptoss_glu, 1.702F, *limit};
    if (config.is_type("gpt_oss") && !config.swiglu_alpha) return spec;  // 1.702 is the model's own
    auto const alpha = parameter(config.swiglu_alpha, "swiglu_alpha", config, found);
    if (!alpha) return std::nullopt;
    spec.alpha = *alpha;
    return spec;
  }
  if (config.is_type("deepseek_v4")) {
    auto const limit = parameter(config.swiglu_limit, "swiglu_limit", config, found);
    if (!limit) return std::nullopt;
    return activation_spec{activation::clamped_silu_glu, 1.702F, *limit};
  }
  if (config.swiglu_limit || config.swiglu_alpha) {
    found.error(errc::unsupported, "unknown-activation", "",
                "{} is stated, but how models of type '{}' clamp is not known",
                config.swiglu_limit ? config.swiglu_limit->source : config.swiglu_alpha->source,
                config.model_type);
    return std::nullopt;
  }
  if (!config.activation && !config.model_type.empty()) {
    found.error(errc::invalid_argument, "unknown-activation", "",
                "the config of the model '{}' states no hidden_act", config.model_type);
    return std::nullopt;
  }
  // params.json has no such key: its models use silu
  std::string_view const act =
      config.activation ? std::string_view(config.activation->value) : std::string_view("silu");
  if (act == "silu" || act == "swish" || act == "swiglu") {
    return activation_spec{activation::silu_glu, 1.702F, 7.0F};
  }
  if (act == "gelu") return activation_spec{activation::gelu_glu, 1.702F, 7.0F};
  if (act == "gelu_pytorch_tanh" || act == "gelu_new") {
    return activation_spec{activation::gelu_tanh_glu, 1.702F, 7.0F};
  }
  found.error(errc::unsupported, "unknown-activation", "", "{} is {}, which is not known",
              config.activation->source, quoted(act, 60));
  return std::nullopt;
}

activation_scheme activation_scheme_of(model_config const& config) noexcept {
  auto const& stated = config.quant.activation_scheme;
  return stated && stated->value == "dynamic" ? activation_scheme::dynamic
                                              : activation_scheme::unstated;
}

weight_placement weight_placement_of(model_config const& config) noexcept {
  return config.is_type("llama4") ? weight_placement::input : weight_placement::output;
}

}  // namespace moe64::checkpoint
