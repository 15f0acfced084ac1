#include "checkpoint/config/activation_keys.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

using enum activation_role;

// Sources: "X: class" is the class of Transformers 5.22.2 that reads the key.
constexpr activation_key keys[] = {
    {"moe_hidden_act", expert_function, "", "named for the experts alone"},
    {"mlp_hidden_act", expert_function, "nemotron_h", "NemotronHExperts: act_fn"},
    {"hidden_act", function, "", "the experts classes of Transformers: act_fn"},
    {"hidden_activation", function, "", "Gemma4TextExperts: act_fn"},
    {"activation_function", function, "jetmoe", "JetMoeMoE: activation"},
    {"swiglu_alpha", alpha, "gpt_oss minimax_m3 minimax_m3_vl openai_privacy_filter",
     "GptOssExperts, MiniMaxM3VLExperts, OpenAIPrivacyFilterExperts: _apply_gate"},
    {"swiglu_limit", limit,
     "gpt_oss minimax_m3 minimax_m3_vl openai_privacy_filter deepseek_v4 glm5_next hy_v4",
     "GptOssExperts, DeepseekV4Experts, Glm5NextTextExperts, HYV4Experts: _apply_gate"},
    {"swiglu_limits", limits, "step3p5 step3p7", "Step3p7SparseMoeBlock: limit of its layer"},
    {"expert_swiglu_limit_list", limits, "bailing_moe_v3 bailing_hybrid",
     "SGLang bailing_moe: gemm1_clamp_limit of its layer"},

    {"swiglu_limits_shared", elsewhere, "", "Step3p7MLP: of the shared expert"},
    {"share_expert_swiglu_limit_list", elsewhere, "", "SGLang bailing_moe: of the shared expert"},
    {"mamba_hidden_act", elsewhere, "", "NemotronHMamba2Mixer: of the convolution"},
    {"linear_silu", elsewhere, "", "Ling-3: of its linear attention"},
    {"projector_hidden_act", elsewhere, "", "multi-modal projectors: between the towers"},
    {"activation_dropout", elsewhere, "", "dropout while training"},
    {"ffn_dim_multiplier", elsewhere, "", "Mistral's params.json: of the width of dense layers"},
    {"mlp_alpha_factor", elsewhere, "minimax", "MiniMaxDecoderLayer: of the residual sum"},
    {"mlp_beta_factor", elsewhere, "minimax", "MiniMaxDecoderLayer: of the residual sum"},
    {"layernorm_mlp_alpha", elsewhere, "", "MiniMax-01: of the residual sum"},
    {"layernorm_mlp_beta", elsewhere, "", "MiniMax-01: of the residual sum"},
    {"routed_scaling_factor", elsewhere, "", "TopkRouter classes: part of the routing weights"},
    {"moe_routed_scaling_factor", elsewhere, "", "LagunaTopkRouter: part of the routing weights"},
    {"routed_scale", elsewhere, "", "Mistral's params.json: part of the routing weights"},
    {"moe_router_scaling_factor", elsewhere, "", "Step3p7: part of the routing weights"},
    {"moe_router_activation", elsewhere, "", "Step-3.5: of the router"},
    {"moe_router_activation_func", elsewhere, "", "Kimi: of the router"},
    {"moe_router_logit_softcapping", elsewhere, "", "LagunaTopkRouter: of the router"},
};

constexpr activation_family families[] = {
    {.model_types = "gpt_oss",
     .fixed_function = "silu",
     .clamped = activation::gptoss_glu,
     .needs_limit = true,
     .default_alpha = 1.702F,
     .source = "GptOssExperts: 1.702 is the model's own, its releases state the limit"},
    {.model_types = "minimax_m3 minimax_m3_vl",
     .fixed_function = "silu",
     .clamped = activation::gptoss_glu,
     .needs_limit = true,
     .source = "MiniMaxM3VLExperts: its releases state both"},
    {.model_types = "openai_privacy_filter",
     .fixed_function = "silu",
     .clamped = activation::gptoss_glu,
     .needs_limit = true,
     .default_limit = 7.0F,
     .default_alpha = 1.702F,
     .source = "OpenAIPrivacyFilterConfig: defaults"},
    {.model_types = "deepseek_v4",
     .default_function = "silu",
     .clamped = activation::clamped_silu_glu,
     .needs_limit = true,
     .source = "DeepseekV4Experts: its releases state the limit"},
    {.model_types = "glm5_next hy_v4",
     .fixed_function = "silu",
     .clamped = activation::clamped_silu_glu,
     .needs_limit = true,
     .default_limit = 10.0F,
     .source = "Glm5NextTextConfig, HYV4Config: default of swiglu_limit"},
    {.model_types = "step3p5 step3p7",
     .default_function = "silu",
     .clamped = activation::step_glu,
     .source = "Step3p7Experts: clamps after SiLU"},
    {.model_types = "bailing_moe_v3 bailing_hybrid",
     .clamped = activation::step_glu,
     .source = "SGLang bailing_moe: clamps after SiLU"},
    {.model_types = "lfm2_moe", .fixed_function = "silu", .source = "Lfm2MoeExperts: F.silu"},
    {.model_types = "nemotron_h",
     .default_function = "relu2",
     .source = "NemotronHConfig: default of mlp_hidden_act"},
    {.model_types = "jamba", .default_function = "silu", .source = "JambaConfig: default"},
    {.model_types = "muse_spark",
     .refusal = "each expert ends in a norm of its own, which is no part of this layer",
     .source = "MuseSparkExperts: post_expert_norm"},
};

/// Words that alone make a key look like an activation.
constexpr std::string_view strong_words[] = {
    "act",   "activation", "activations", "clamp",   "clamped",   "clamping", "clamps",
    "clip",  "clipping",   "clips",       "geglu",   "gelu",      "glu",      "nonlinearity",
    "reglu", "relu",       "relu2",       "silu",    "situ",      "softcap",  "softcapping",
    "swish", "softcaps",   "swiglu",      "swiglus", "softcapped"};
/// Of these, what clamps: it counts in objects of the config that nothing else is read from, too.
constexpr std::string_view clamp_words[] = {
    "clamp",   "clamped",    "clamping",    "clamps",   "clip",   "clipping", "clips",
    "softcap", "softcapped", "softcapping", "softcaps", "swiglu", "swiglus"};
/// Words that do beside a word of experts, or as the whole key.
constexpr std::string_view weak_words[] = {
    "alpha", "alphas", "beta",       "cap",         "caps",  "gain",   "gains",
    "limit", "limits", "multiplier", "multipliers", "scale", "scales", "scaling"};
/// Words that do beside "expert" or "experts": what is done to the result of each.
constexpr std::string_view result_words[] = {"layernorm", "norm", "norms", "rmsnorm"};
constexpr std::string_view expert_words[] = {"down", "expert", "experts", "feed",
                                             "ffn",  "gate",   "inter",   "intermediate",
                                             "mlp",  "moe",    "routed",  "up"};
/// Words of other parts of a model: keys with one of them say nothing about routed experts.
constexpr std::string_view other_words[] = {
    "attention", "attn",   "audio", "classifier", "conv", "embedding", "final", "head",  "image",
    "logit",     "logits", "mamba", "projector",  "rope", "router",    "ssm",   "video", "vision"};
constexpr std::string_view shared_words[] = {"share", "shared"};

constexpr std::string_view separators = "_-. ";

bool is_upper(char c) noexcept { return c >= 'A' && c <= 'Z'; }

/// Whether a word of a file is this one, which is in small letters.
bool same_word(std::string_view found, std::string_view word) noexcept {
  return std::equal(found.begin(), found.end(), word.begin(), word.end(),
                    [](char a, char b) { return (is_upper(a) ? a - 'A' + 'a' : a) == b; });
}

template <std::size_t Count>
bool is_any(std::string_view found, std::string_view const (&list)[Count]) noexcept {
  return std::any_of(std::begin(list), std::end(list),
                     [&](std::string_view word) { return same_word(found, word); });
}

/// Any word of a key that is in the list: words lie between underscores, dashes, dots and blanks,
/// and in one of those a capital behind a small letter begins another ("swigluLimit", "SiLU").
template <std::size_t Count>
bool has_any(std::string_view key, std::string_view const (&list)[Count]) noexcept {
  while (!key.empty()) {
    std::size_t const end = std::min(key.find_first_of(separators), key.size());
    std::string_view const word = key.substr(0, end);
    if (is_any(word, list)) return true;
    for (std::size_t begin = 0, i = 1; i <= word.size(); ++i) {
      if (i < word.size() && (!is_upper(word[i]) || is_upper(word[i - 1]))) continue;
      if (is_any(word.substr(begin, i - begin), list)) return true;
      begin = i;
    }
    key.remove_prefix(std::min(key.size(), end + 1));
  }
  return false;
}

/// About another part of the model.
bool is_elsewhere(std::string_view key) noexcept {
  constexpr std::string_view routed[] = {"routed"};
  return has_any(key, other_words) || (has_any(key, shared_words) && !has_any(key, routed));
}

bool is_one_word(std::string_view key) noexcept {
  return key.find_first_of(separators) == std::string_view::npos;
}

}  // namespace

std::span<activation_key const> activation_keys() noexcept { return keys; }
std::span<activation_family const> activation_families() noexcept { return families; }

bool names_experts(std::string_view key) noexcept {
  return has_any(key, expert_words) && !is_elsewhere(key);
}

bool looks_like_clamp(std::string_view key) noexcept {
  return !is_elsewhere(key) && has_any(key, clamp_words);
}

bool may_hold_experts(std::string_view key) noexcept {
  constexpr std::string_view storage[] = {"quantization", "compression"};
  return !is_elsewhere(key) && !has_any(key, storage);
}

bool looks_like_activation(std::string_view key, bool of_experts) noexcept {
  constexpr std::string_view each[] = {"expert", "experts"};
  if (is_elsewhere(key)) return false;
  bool const experts = of_experts || has_any(key, expert_words);
  return has_any(key, strong_words) || (has_any(key, each) && has_any(key, result_words)) ||
         ((experts || is_one_word(key)) && has_any(key, weak_words));
}

}  // namespace moe64::checkpoint
