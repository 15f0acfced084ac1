#include "checkpoint/config/layer_activation.hpp"

#include "checkpoint/config/activation_keys.hpp"
#include "checkpoint/findings/quoted.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {
namespace {

constexpr std::string_view way_out = "state it with the assumption activation=KIND";

struct function_kinds {
  std::string_view word;
  std::optional<activation> gated;
  std::optional<activation> alone;  ///< without a gate
};
constexpr function_kinds functions[] = {
    {"silu", activation::silu_glu, activation::silu},
    {"swish", activation::silu_glu, activation::silu},
    {"swiglu", activation::silu_glu, {}},
    {"gelu", activation::gelu_glu, activation::gelu},
    {"gelu_pytorch_tanh", activation::gelu_tanh_glu, {}},
    {"gelu_new", activation::gelu_tanh_glu, {}},
    {"relu2", {}, activation::relu2},
};

/// What is positive as a double may be 0 or infinite as the f32 that the kernels get.
bool is_positive(float value) { return value > 0.0F && std::isfinite(value); }

layer_activation refused(errc code, std::string text) { return {{}, code, std::move(text)}; }

/// The families of the model and of its language part: none, one, or two that contradict each
/// other.
std::vector<activation_family const*> families_of(model_config const& config) {
  std::vector<activation_family const*> result;
  for (activation_family const& family : activation_families()) {
    if (config.is_one_of(family.model_types)) result.push_back(&family);
  }
  return result;
}

class activation_finder {
 public:
  activation_finder(model_config const& config, assumptions const& assumed,
                    activation_query const& query)
      : config_(config),
        facts_(config.activation),
        assumed_(assumed),
        query_(query),
        families_(families_of(config)),
        family_(families_.empty() ? nullptr : families_.front()) {}

  [[nodiscard]] layer_activation find() const {
    if (assumed_.activation) return checked_gate(*assumed_.activation);
    for (unknown_activation_key const& unknown : facts_.unknown) {
      auto const& ignored = assumed_.ignored;
      if (std::find(ignored.begin(), ignored.end(), unknown.key) != ignored.end()) continue;
      return refused(
          errc::unsupported,
          fmt::format("{}, which looks as if it changed the activation of the experts, "
                      "but what it does in models of type '{}' is not known; {}, or that "
                      "it does not matter with ignore={}",
                      unknown.text, config_.model_type, way_out, escaped(unknown.key, 60)));
    }
    if (!facts_.contradiction.empty()) {
      return refused(errc::invalid_argument,
                     fmt::format("{}; the activation of the experts is therefore not known; {}",
                                 facts_.contradiction, way_out));
    }
    if (families_.size() > 1) {
      return refused(errc::invalid_argument,
                     fmt::format("the model is of type '{}', but its language part of type '{}', "
                                 "whose experts compute something else; {}",
                                 config_.model_type, config_.text_model_type, way_out));
    }
    if (family_ != nullptr && !family_->refusal.empty()) {
      return refused(errc::unsupported, fmt::format("in models of type '{}' {}", config_.model_type,
                                                    family_->refusal));
    }
    std::string_view const function = function_word();
    if (function.empty()) return silent();
    if (family_ == nullptr || !family_->clamped) return plain(function);
    return clamped(function);
  }

 private:
  [[nodiscard]] std::string layer_text() const {
    return fmt::format("{}layer {}", query_.mtp ? "MTP " : "", query_.layer);
  }

  [[nodiscard]] layer_activation checked_gate(activation_spec const& spec) const {
    if (is_gated(spec.kind) == query_.gated) return {spec, {}, {}};
    return refused(errc::invalid_argument,
                   fmt::format("{} is {}, but the experts of {} have {}", name(spec.kind),
                               is_gated(spec.kind) ? "gated" : "not gated", layer_text(),
                               query_.gated ? "gate and up" : "one matrix before it"));
  }

  [[nodiscard]] std::string_view function_word() const {
    if (family_ != nullptr && !family_->fixed_function.empty()) return family_->fixed_function;
    if (facts_.function) return facts_.function->value;
    if (facts_.mistral_native) return "silu";
    return family_ != nullptr ? family_->default_function : std::string_view();
  }

  [[nodiscard]] layer_activation silent() const {
    std::string const what =
        facts_.nothing_read
            ? "there is no config.json beside the tensors, so nothing states the activation of "
              "the experts"
            : fmt::format("the config of the model '{}' states no activation (hidden_act)",
                          config_.model_type);
    return refused(errc::invalid_argument, fmt::format("{}; {}", what, way_out));
  }

  [[nodiscard]] layer_activation plain(std::string_view function) const {
    for (function_kinds const& known : functions) {
      if (known.word != function) continue;
      auto const& kind = query_.gated ? known.gated : known.alone;
      if (kind) return {activation_spec{*kind}, {}, {}};
      return refused(
          errc::unsupported,
          fmt::format("the activation {} is not there {} a gate, which the experts of {} "
                      "{}",
                      quoted(function, 60), query_.gated ? "with" : "without", layer_text(),
                      query_.gated ? "have" : "have not"));
    }
    return refused(errc::unsupported,
                   fmt::format("{} is {}, which is not known; {}",
                               facts_.function ? facts_.function->source : "the activation",
                               quoted(function, 60), way_out));
  }

  /// A limit of this layer, 0 for none; or a refusal.
  [[nodiscard]] double limit_of_layer(layer_activation& refusal) const {
    if (!facts_.limits) {
      return facts_.limit ? facts_.limit->value : double{family_->default_limit};
    }
    auto const& list = facts_.limits->value;
    auto const& backbone = config_.geometry.layers;
    auto const& mtp = config_.geometry.mtp_layers;
    if (auto const count = static_cast<index_t>(list.size());
        backbone && count - backbone->value > (mtp ? mtp->value : 0)) {
      refusal =
          refused(errc::invalid_argument,
                  fmt::format("{} has {} entries for {} layers{}; {}", facts_.limits->source, count,
                              backbone->value,
                              mtp ? fmt::format(" and {} MTP layers", mtp->value) : "", way_out));
      return 0.0;
    }
    index_t at = query_.layer;
    // layers of multi-token prediction follow the backbone, however their tensors are numbered
    if (query_.mtp && backbone && at < backbone->value) at += backbone->value;
    if (at < static_cast<index_t>(list.size())) return list[static_cast<std::size_t>(at)];
    refusal = refused(errc::invalid_argument,
                      fmt::format("{} has {} entries, none for {}; {}", facts_.limits->source,
                                  list.size(), layer_text(), way_out));
    return 0.0;
  }

  [[nodiscard]] layer_activation clamped(std::string_view function) const {
    layer_activation refusal;
    double const limit = limit_of_layer(refusal);
    if (!refusal.refusal.empty()) return refusal;
    if (limit == 0.0 && !family_->needs_limit) return plain(function);
    std::string const source = facts_.limits  ? facts_.limits->source
                               : facts_.limit ? facts_.limit->source
                                              : std::string("swiglu_limit");
    if (!facts_.limit && limit == 0.0) return missing("swiglu_limit");
    activation_spec spec{*family_->clamped};
    spec.limit = static_cast<float>(limit);
    if (!is_positive(spec.limit)) return not_positive(source, limit);
    if (spec.kind == activation::gptoss_glu) {
      double const alpha = facts_.alpha ? facts_.alpha->value : double{family_->default_alpha};
      if (!facts_.alpha && alpha == 0.0) return missing("swiglu_alpha");
      spec.alpha = static_cast<float>(alpha);
      if (!is_positive(spec.alpha)) return not_positive(facts_.alpha->source, alpha);
    } else if (function != "silu" && function != "swish") {
      return refused(errc::unsupported, fmt::format("{} is {} beside {} = {}: only silu is known "
                                                    "with a limit; {}",
                                                    facts_.function->source, quoted(function, 60),
                                                    source, limit, way_out));
    }
    return checked_gate(spec);
  }

  [[nodiscard]] layer_activation missing(std::string_view key) const {
    return refused(errc::invalid_argument,
                   fmt::format("models of type '{}' clamp their activation, but the config has no "
                               "{}; {}",
                               config_.model_type, key, way_out));
  }

  [[nodiscard]] layer_activation not_positive(std::string const& source, double value) const {
    return refused(errc::invalid_argument,
                   fmt::format("{} is {} for {}, expected a positive number of f32; {}", source,
                               value, layer_text(), way_out));
  }

  model_config const& config_;
  activation_facts const& facts_;
  assumptions const& assumed_;
  activation_query const& query_;
  std::vector<activation_family const*> families_;
  activation_family const* family_;
};

}  // namespace

layer_activation activation_of(model_config const& config, assumptions const& assumed,
                               activation_query const& query) {
  return activation_finder(config, assumed, query).find();
}

bool same_activation(activation_spec const& left, activation_spec const& right) noexcept {
  return left.kind == right.kind && (!has_limit(left.kind) || left.limit == right.limit) &&
         (left.kind != activation::gptoss_glu || left.alpha == right.alpha);
}

}  // namespace moe64::checkpoint
