#include "checkpoint/config/activation_keys.hpp"

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
    {"output_gate_type", elsewhere, "", "Qwen3.5, Qwen3.8: of the gate behind the attention"},
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
    {.model_types = "aria",
     .fixed_function = "silu",
     .source = "AriaExperts: hidden_act is that of its shared experts"},
    {.model_types = "inkling2",
     .refusal = "gate and up have soft caps (mlp_gate_softcap, mlp_up_softcap), of 4 and 25 where "
                "the config states none",
     .source = "Inkling2SoftcappedSwiGLU, Inkling2TextConfig (Transformers 5.23)"},
    {.model_types = "muse_spark",
     .refusal = "each expert ends in a norm of its own, which is no part of this layer",
     .source = "MuseSparkExperts: post_expert_norm"},
};

}  // namespace

std::span<activation_key const> activation_keys() noexcept { return keys; }
std::span<activation_family const> activation_families() noexcept { return families; }

}  // namespace moe64::checkpoint
