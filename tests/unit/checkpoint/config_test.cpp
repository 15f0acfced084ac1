#include "checkpoint/config/activation_keys.hpp"
#include "checkpoint/config/activation_words.hpp"
#include "checkpoint/config/assumptions.hpp"
#include "checkpoint/config/layer_activation.hpp"
#include "checkpoint/config/model_config.hpp"
#include "checkpoint/naming/name_rules.hpp"
#include "support/error_matcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace moe64::checkpoint {
namespace {

using testing::HasSubstr;

// ---- patterns and lists of modules --------------------------------------------------------------

TEST(name_pattern, regular_expressions_match_from_the_start_only) {
  auto const matches = [](std::string_view pattern, std::string_view text) {
    return name_pattern::regex(pattern).matches(text);
  };
  EXPECT_TRUE(matches("model", "model.layers"));
  EXPECT_FALSE(matches("layers", "model.layers"));
  EXPECT_TRUE(matches(".*layers", "model.layers.0"));
  EXPECT_FALSE(matches(".*layers$", "model.layers.0"));
  EXPECT_TRUE(matches(R"(^model\.layers\.(1|39|46)\..*)", "model.layers.39.mlp"));
  EXPECT_FALSE(matches(R"(^model\.layers\.(1|39|46)\..*)", "model.layers.391.mlp"));
  EXPECT_FALSE(matches(R"(^model\.layers\.(1|39|46)\..*)", "modelxlayers.1.mlp"));
  EXPECT_TRUE(matches(R"(.*\.layers\.\d+\.mlp\.gate$)", "model.layers.12.mlp.gate"));
  EXPECT_FALSE(matches(R"(.*\.layers\.\d+\.mlp\.gate$)", "model.layers.12.mlp.gate_proj"));
  EXPECT_TRUE(matches("[a-c]{2,3}x", "abcx"));
  EXPECT_FALSE(matches("[a-c]{2,3}x", "abcax"));
  EXPECT_FALSE(matches("[a-c]{2,3}x", "ax"));
  EXPECT_TRUE(matches("a{2}b?c+d", "aaccd"));
  EXPECT_TRUE(matches("a{2,}$", "aaaa"));
  EXPECT_FALSE(matches("a{2,}$", "a"));
  EXPECT_TRUE(matches("[^.]+\\.x", "abc.x"));
  EXPECT_FALSE(matches("[^.]+\\.x", "a.b.x"));
  EXPECT_TRUE(matches("(?:ab|cd|)e", "e"));
  EXPECT_TRUE(matches("(?P<n>ab)+?c", "ababc"));
  EXPECT_TRUE(matches("a|b|c$", "c"));
  EXPECT_FALSE(matches("(a|b|c)$", "d"));
  EXPECT_TRUE(matches("((a|b)*c)*d", "abcbcd"));
  EXPECT_TRUE(matches(R"([\w.]+\s\S\W\D)", "a.b c.d"));
  EXPECT_TRUE(matches("[]a]", "]"));
  EXPECT_TRUE(matches("[a-]", "-"));
  EXPECT_TRUE(matches("", "anything"));
  EXPECT_TRUE(matches("(a*)*$", "aaa"));
}

TEST(name_pattern, catastrophic_expressions_take_no_time) {
  std::string const pattern = "(a|a)*(a*)*(a?){64}$";
  std::string const text = std::string(4000, 'a') + "b";
  EXPECT_FALSE(name_pattern::regex(pattern).matches(text));
}

TEST(name_pattern, what_is_not_understood_is_refused) {
  for (std::string_view const pattern :
       {"(?!x)", "(?=x)", "(?<=x)", "(?i)x", "(a)\\1", "\\bx", "a{65}", "a{2", "a{}", "a{3,2}",
        "(a", "a)", "[a", "[z-a]", "*a", "a**", "\\", "(?P<n", "a{1}{2}"}) {
    EXPECT_MOE64_ERROR(name_pattern::regex(pattern), errc::unsupported, "[name_pattern]");
  }
  EXPECT_MOE64_ERROR(name_pattern::regex(std::string(1025, 'a')), errc::unsupported, "longer");
  EXPECT_MOE64_ERROR(name_pattern::regex("((((a{64}){64}){64}){64})"), errc::unsupported,
                     "too large");
  std::string nested;
  for (int i = 0; i < 40; ++i) nested += '(';
  EXPECT_MOE64_ERROR(name_pattern::regex(nested), errc::unsupported, "nested too deeply");
  EXPECT_MOE64_ERROR(name_pattern::regex("(?!\x1b[2J)"), errc::unsupported, "\\x1b");
}

TEST(name_pattern, globs_match_the_whole_name) {
  auto const matches = [](std::string_view pattern, std::string_view text) {
    return name_pattern::glob(pattern).matches(text);
  };
  EXPECT_TRUE(matches("lm_head", "lm_head"));
  EXPECT_FALSE(matches("lm_head", "lm_head2"));
  EXPECT_TRUE(matches("model.layers.1*", "model.layers.10"));
  EXPECT_TRUE(matches("*self_attn*", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(matches("layers.?", "layers.7"));
  EXPECT_FALSE(matches("layers.?", "layers.17"));
  EXPECT_TRUE(matches("layers.[0-3]", "layers.2"));
  EXPECT_FALSE(matches("layers.[!0-3]", "layers.2"));
  EXPECT_TRUE(matches("a[", "a["));
  EXPECT_FALSE(matches("a.b", "axb"));
}

TEST(name_rules, each_style_covers_what_it_means) {
  name_rules rules;
  EXPECT_TRUE(rules.empty());
  rules.add("model.layers.1", rule_style::modules);
  rules.add("re:.*lm_head", rule_style::modules);
  rules.add("mlp.gate", rule_style::components);
  rules.add("*router*", rule_style::globs);
  rules.add("MoEGate", rule_style::modules);
  EXPECT_EQ(rules.size(), 5);
  EXPECT_TRUE(rules.covers("model.layers.1"));
  EXPECT_TRUE(rules.covers("model.layers.1.mlp.experts.0.up_proj"));
  EXPECT_FALSE(rules.covers("model.layers.10.mlp.experts.0.up_proj"));
  EXPECT_TRUE(rules.covers("model.lm_head"));
  EXPECT_TRUE(rules.covers("model.layers.7.mlp.gate"));
  EXPECT_FALSE(rules.covers("model.layers.7.mlp.gate_proj"));
  EXPECT_TRUE(rules.covers("model.layers.7.router.layer"));
  EXPECT_FALSE(rules.covers("model.layers.7.mlp.experts.0.up_proj"));
  rules.add("Linear", rule_style::modules);
  EXPECT_TRUE(rules.covers("model.layers.7.mlp.experts.0.up_proj"));
}

// ---- configs ------------------------------------------------------------------------------------

struct parsed {
  std::unique_ptr<json_document const> config, hf, params;
  findings found;
  model_config model;

  explicit parsed(std::string_view config_text, std::string_view hf_text = {},
                  std::string_view params_text = {}) {
    if (!config_text.empty()) config = parse_json(config_text, "config.json");
    if (!hf_text.empty()) hf = parse_json(hf_text, "hf_quant_config.json");
    if (!params_text.empty()) params = parse_json(params_text, "params.json");
    auto const root = [](auto const& document) { return document ? &document->root() : nullptr; };
    model = read_model_config({root(config), root(hf), root(params)}, found);
  }
  [[nodiscard]] std::string text() const {
    return found.kept().empty() ? std::string() : found.kept().front().text;
  }
};

TEST(model_config, geometry_has_many_names) {
  parsed const deepseek(
      R"({"model_type": "deepseek_v3", "hidden_size": 7168, "moe_intermediate_size": 2048,
          "intermediate_size": 18432, "n_routed_experts": 256, "num_experts_per_tok": 8,
          "num_hidden_layers": 4, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1,
          "moe_layer_freq": 1, "transformers_version": "4.46.3"})");
  EXPECT_TRUE(deepseek.found.kept().empty());
  EXPECT_EQ(deepseek.model.geometry.inter->value, 2048);
  EXPECT_EQ(deepseek.model.geometry.inter->source, "config.json: moe_intermediate_size");
  EXPECT_EQ(deepseek.model.geometry.experts->value, 256);
  EXPECT_EQ(deepseek.model.geometry.mtp_layers->value, 1);
  EXPECT_EQ(deepseek.model.moe_layers, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(*deepseek.model.transformers, (library_version{4, 46}));

  parsed const nested(R"({"model_type": "llama4", "text_config": {"model_type": "llama4_text",
      "hidden_size": 5120, "intermediate_size": 8192, "num_local_experts": 128,
      "num_hidden_layers": 4, "interleave_moe_layer_step": 2}})");
  EXPECT_EQ(nested.model.geometry.inter->value, 8192);
  EXPECT_TRUE(nested.model.is_type("llama4"));
  EXPECT_EQ(nested.model.moe_layers, (std::vector<bool>{false, true, false, true}));

  parsed const mistral("", "", R"({"dim": 64, "n_layers": 2, "moe": {"num_experts": 8,
      "expert_hidden_dim": 32}})");
  EXPECT_EQ(mistral.model.geometry.hidden->source, "params.json: dim");
  EXPECT_EQ(mistral.model.geometry.inter->value, 32);
}

TEST(model_config, layers_with_experts_are_stated_in_many_ways) {
  auto const flags = [](std::string const& member) {
    return parsed(R"({"num_hidden_layers": 4, )" + member + "}").model.moe_layers;
  };
  EXPECT_EQ(flags(R"("mlp_only_layers": [1], "decoder_sparse_step": 1)"),
            (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(flags(R"("moe_layer_freq": [0, 1, 1, 0])"),
            (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(flags(R"("moe_layers_enum": "1,3")"), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(flags(R"("mlp_layer_types": ["dense", "sparse", "sparse", "dense"])"),
            (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(flags(R"("moe_layers": [0, 2])"), (std::vector<bool>{true, false, true, false}));
  EXPECT_TRUE(flags(R"("x": 1)").empty());
}

TEST(model_config, facts_that_disagree_are_errors) {
  parsed const geometry(R"({"num_experts": 8, "text_config": {"num_local_experts": 16}})");
  EXPECT_EQ(geometry.found.count("config-conflict"), 1);
  EXPECT_THAT(geometry.text(), HasSubstr("config.json: num_experts is 8, but config.json: "
                                         "text_config.num_local_experts is 16"));
  parsed const method(R"({"quantization_config": {"quant_method": "fp8"}})",
                      R"({"quantization": {"quant_algo": "NVFP4"}})");
  EXPECT_EQ(method.found.count("config-conflict"), 1);
  EXPECT_THAT(method.text(), HasSubstr("states the method 'fp8', but hf_quant_config.json"));
  parsed const algorithm(
      R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}})",
      R"({"quantization": {"quant_algo": "NVFP4"}})");
  EXPECT_EQ(algorithm.found.count("config-conflict"), 1);
  parsed const levels(R"({"quantization_config": {"quant_method": "fp8"}, "text_config":
      {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}})");
  EXPECT_EQ(levels.found.count("config-conflict"), 1);
  parsed const agreeing(
      R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}})",
      R"({"quantization": {"quant_algo": "FP8", "exclude_modules": ["a*"]}})");
  EXPECT_TRUE(agreeing.found.kept().empty());
  EXPECT_TRUE(agreeing.model.quant.skipped.covers("abc"));
}

TEST(model_config, values_of_the_wrong_kind_are_errors_with_their_path) {
  for (std::string_view const text : {
           R"({"hidden_size": "x"})",
           R"({"hidden_size": 0})",
           R"({"num_hidden_layers": -1})",
           R"({"num_hidden_layers": 100001})",
           R"({"quantization_config": {"quant_method": 3}})",
           R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}})",
           R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 0]}})",
           R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": ["a", 1]}})",
           R"({"quantization_config": {"quant_method": "fp8", "ignored_layers": "x"}})",
           R"({"quantization_config": {"quant_method": "fp8", "ignored_layers": [1]}})",
           R"({"quantization_config": {"quant_method": "fp8", "ignored_layers": ["re:(?!a)x"]}})",
           R"({"quantization_config": {"quant_method": "compressed-tensors"}})",
           R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups":
               {"g": {"targets": ["Linear"]}}}})",
           R"({"quantization_config": 7})",
       }) {
    parsed const result(text);
    EXPECT_GE(result.found.count(finding_level::error), 1) << text;
  }
  EXPECT_EQ(parsed("[]").found.count(finding_level::error), 0);
  EXPECT_GE(parsed("", "{}").found.count(finding_level::error), 1);
  EXPECT_GE(parsed("", "", R"({"quantization": {"qformat_weight": "int8"}})")
                .found.count(finding_level::error),
            1);
}

TEST(quant_declaration, says_where_each_fact_is_from) {
  parsed const result(R"({"text_config": {"expert_dtype": "fp4", "quantization_config":
      {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 64],
       "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}}})");
  quant_declaration const& quant = result.model.quant;
  EXPECT_EQ(quant.method, quant_method::fp8);
  EXPECT_EQ(quant.method_source, "config.json: text_config.quantization_config");
  EXPECT_EQ(quant.expert_dtype->source, "config.json: text_config.expert_dtype");
  EXPECT_EQ(quant.scale_fmt->source, "config.json: text_config.quantization_config.scale_fmt");
  EXPECT_EQ(quant.activation_scheme->value, "dynamic");
  EXPECT_EQ(quant.scheme.kind, weight_scheme::fp8_block);
  EXPECT_EQ(quant.scheme.block_rows, 128);
  EXPECT_EQ(quant.scheme.block_cols, 64);
  EXPECT_TRUE(quant.skipped.covers("model.lm_head"));
}

TEST(quant_declaration, unknown_words_are_kept_as_unsupported) {
  EXPECT_EQ(parsed(R"({"quantization_config": {"quant_method": "gptq"}})").model.quant.scheme.kind,
            weight_scheme::unsupported);
  EXPECT_EQ(parsed(R"({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}})")
                .model.quant.scheme.kind,
            weight_scheme::unsupported);
  parsed const asymmetric(R"({"quantization_config": {"config_groups": {"g": {"targets": ["Linear"],
      "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
                  "symmetric": false}}}, "format": "pack-quantized"}})");
  EXPECT_EQ(asymmetric.model.quant.scheme.kind, weight_scheme::unsupported);
  EXPECT_THAT(asymmetric.model.quant.scheme.spelling, HasSubstr("asymmetric"));
}

TEST(quant_declaration, transforms_of_running_models_are_refused) {
  auto const errors = [](std::string const& apply) {
    parsed const result(R"({"quantization_config": {"format": "float-quantized", "config_groups":
        {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float",
         "strategy": "channel"}}}, "transform_config": {"config_groups": {"R4": {"type": "hadamard",
         "apply": )" + apply +
                        "}}}}}");
    return result.found.count(finding_level::error);
  };
  EXPECT_EQ(errors(R"([{"location": "input", "targets": ["re:.*down_proj$"]}])"), 1);
  EXPECT_EQ(errors(R"([{"location": "weight_input"}, {"location": "output"}, {}])"), 2);
  EXPECT_EQ(errors(R"([{"location": "weight_output"}, {"location": "k_cache"}])"), 0);
  EXPECT_EQ(errors("[]"), 0);
}

TEST(quant_declaration, mixed_precision_is_declared_per_module) {
  parsed const modelopt("",
                        R"({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
      "model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
      "mtp.*": {"quant_algo": "FP8_BLOCK_SCALES"}}}})");
  quant_declaration const& quant = modelopt.model.quant;
  EXPECT_EQ(quant.scheme_of("model.layers.0.mlp.experts.3.up_proj").kind, weight_scheme::nvfp4);
  EXPECT_EQ(quant.scheme_of("mtp.layers.0.mlp.experts.3.up_proj").kind, weight_scheme::fp8_block);
  EXPECT_EQ(quant.scheme_of("model.layers.1.mlp.experts.3.up_proj").kind, weight_scheme::unstated);
  parsed const groups(R"({"quantization_config": {"quant_method": "compressed-tensors",
      "format": "mixed-precision", "config_groups": {
        "a": {"targets": ["re:.*experts.*"], "format": "nvfp4-pack-quantized", "weights":
              {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}},
        "b": {"targets": ["Linear"], "format": "float-quantized", "weights":
              {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": "128x128"}}}}})");
  EXPECT_EQ(groups.model.quant.scheme_of("model.layers.0.mlp.experts.3.up_proj").kind,
            weight_scheme::nvfp4);
  EXPECT_EQ(groups.model.quant.scheme_of("model.layers.0.self_attn.q_proj").block_cols, 128);
}

layer_activation activation_in(std::string const& members, activation_query const& query = {},
                               std::vector<std::string> const& assumed = {}) {
  parsed const result("{" + members + "}");
  return activation_of(result.model, parse_assumptions(assumed), query);
}

TEST(layer_activation, is_read_and_never_filled_in) {
  auto const of = [](std::string const& members) { return activation_in(members).spec; };
  EXPECT_EQ(of(R"("model_type": "a", "hidden_act": "silu")")->kind, activation::silu_glu);
  EXPECT_EQ(of(R"("model_type": "a", "hidden_act": "gelu_pytorch_tanh")")->kind,
            activation::gelu_tanh_glu);
  EXPECT_EQ(of(R"("model_type": "a", "hidden_act": "gelu")")->kind, activation::gelu_glu);
  auto const v4 = of(R"("model_type": "deepseek_v4", "swiglu_limit": 10.0)");
  EXPECT_EQ(v4->kind, activation::clamped_silu_glu);
  EXPECT_EQ(v4->limit, 10.0F);
  auto const m3 = of(R"("model_type": "minimax_m3", "swiglu_limit": 7, "swiglu_alpha": 1.5)");
  EXPECT_EQ(m3->kind, activation::gptoss_glu);
  EXPECT_EQ(m3->alpha, 1.5F);
  for (std::string const members :
       {R"("model_type": "a")", R"("model_type": "a", "hidden_act": "tanh")",
        R"("model_type": "deepseek_v4")", R"("model_type": "minimax_m3", "swiglu_limit": 7)",
        R"("model_type": "gpt_oss", "swiglu_limit": -1)",
        R"("model_type": "deepseek_v4", "hidden_act": "gelu", "swiglu_limit": 7)",
        R"("model_type": "a", "hidden_act": "silu", "text_config": {"hidden_act": "gelu"})",
        R"("model_type": "a", "hidden_act": ["silu"])",
        R"("model_type": "step3p5", "swiglu_limits": 7.0)",
        R"("model_type": "step3p5", "swiglu_limits": ["7"])",
        R"("model_type": "step3p5", "swiglu_limits": [-7.0])",
        R"("model_type": "a", "hidden_act": "silu", "swiglu_limit": 7)"}) {
    EXPECT_FALSE(of(members).has_value()) << members;
    EXPECT_FALSE(activation_in(members).refusal.empty()) << members;
  }
}

TEST(layer_activation, what_is_not_understood_is_named_wherever_it_stands) {
  std::string const base = R"("model_type": "a", "hidden_act": "silu", )";
  auto const refusal = [&](std::string const& member) {
    return activation_in(base + member).refusal;
  };
  EXPECT_THAT(refusal(R"("gate_softcap": 4)"), HasSubstr("gate_softcap is 4"));
  EXPECT_THAT(refusal(R"("moe_activation": {"type": "relu6"})"),
              HasSubstr("moe_activation is an object"));
  EXPECT_THAT(refusal(R"("ffn_act_fn": {"name": "gelu"})"), HasSubstr("ffn_act_fn is an object"));
  EXPECT_THAT(refusal(R"("ffn_config": {"act": {"name": "gelu"}})"), HasSubstr("ffn_config.act"));
  EXPECT_THAT(refusal(R"("expert_kinds": [{"limit": 7}])"), HasSubstr("expert_kinds[0].limit"));
  EXPECT_THAT(refusal(R"("thinker_config": {"text_config": {"swiglu_limit": 7}})"),
              HasSubstr("thinker_config.text_config.swiglu_limit"));
  EXPECT_THAT(refusal(R"("block_configs": [{"ffn": {"softcap": 3}}])"),
              HasSubstr("block_configs[0].ffn.softcap"));
  EXPECT_THAT(refusal(R"("block_configs": [{"ffn": {"hidden_act": "gelu"}}])"),
              HasSubstr("block_configs[0].ffn.hidden_act"));
  EXPECT_THAT(refusal(R"("layer_configs": {"0": {"limit": 7}})"),
              HasSubstr("layer_configs.0.limit"));
  EXPECT_THAT(refusal(R"("thinker_config": {"expert_scale": 7})"),
              HasSubstr("thinker_config.expert_scale"));
  EXPECT_EQ(refusal(R"("vision_config": {"hidden_act": "gelu", "clip_limit": 2})"), "");
  EXPECT_EQ(refusal(R"("talker_config": {"hidden_act": "silu"}, "moe_activation": {})"), "");
  EXPECT_EQ(refusal(R"("quantization_config": {"activation_clip": 7})"), "");
}

TEST(layer_activation, a_function_under_any_name_is_not_passed_over) {
  std::string const base = R"("model_type": "a", "hidden_act": "silu", )";
  auto const refusal = [&](std::string const& member) {
    return activation_in(base + member).refusal;
  };
  EXPECT_THAT(refusal(R"("mlp_type": "GELU")"), HasSubstr("mlp_type is 'GELU'"));
  EXPECT_THAT(refusal(R"("expert_kinds": ["silu", "gelu"])"),
              HasSubstr("expert_kinds is an array"));
  EXPECT_THAT(refusal(R"("moe": {"experts": {"type": "relu2"}})"), HasSubstr("moe.experts.type"));
  for (std::string_view const place :
       {R"("decoder_config": {"hidden_act": "gelu"})", R"("layers": [{"hidden_act": "gelu"}])",
        R"("thinker_config": {"text_config": {"hidden_act": "gelu"}})",
        R"("text_config": {"text_config": {"hidden_act": "gelu"}})"}) {
    EXPECT_THAT(refusal(std::string(place)), HasSubstr("hidden_act is 'gelu'")) << place;
  }
  EXPECT_EQ(refusal(R"("decoder_config": {"hidden_act": "silu"})"), "");
  EXPECT_EQ(refusal(R"("mlp_type": "swiglu", "output_gate_type": "swish")"), "");
  EXPECT_EQ(refusal(R"("output_gate_type": "gelu")"), "");  // of the attention
  EXPECT_EQ(refusal(R"("moe_router_type": "relu", "scoring_func": "sigmoid")"), "");
  // beside a language part these are the functions of other towers
  EXPECT_EQ(refusal(R"("text_config": {"hidden_act": "silu"}, "encoder": {"hidden_act": "gelu"})"),
            "");
}

TEST(layer_activation, two_families_in_one_config_are_refused) {
  EXPECT_THAT(activation_in(R"("model_type": "deepseek_v4", "swiglu_limit": 10.0,
                               "text_config": {"model_type": "gpt_oss"})")
                  .refusal,
              HasSubstr("of type 'deepseek_v4', but its language part of type 'gpt_oss'"));
  EXPECT_THAT(activation_in(R"("model_type": "a", "hidden_act": "silu",
                               "text_config": {"model_type": 7})")
                  .refusal,
              HasSubstr("text_config.model_type is an integer"));
}

TEST(activation_keys, words_are_found_however_a_key_is_spelt) {
  for (std::string_view const key : {"swigluLimit",
                                     "SwiGLU_limit",
                                     "expertSoftcap",
                                     "hiddenAct",
                                     "SiLU-cap",
                                     "mlp_multipliers",
                                     "ffn_nonlinearity",
                                     "gate_clip",
                                     "expert_output_gain",
                                     "post_expert_norm",
                                     "limit",
                                     "alpha",
                                     "shared_and_routed_swiglu_limit",
                                     "moe_activation",
                                     "ACT",
                                     "swiglulimits",
                                     "SwiGLULimit",
                                     "gatesoftcap",
                                     "soft_cap",
                                     "swiglu:limit",
                                     "moe/limit",
                                     "swi\u200bglu2_limit",
                                     "FFNScale",
                                     "w1_limit",
                                     "gate_bound",
                                     "mlp_threshold",
                                     "per_layer_limits",
                                     "moehiddenact",
                                     "swigluoai",
                                     "non_linearity",
                                     "xielu_alpha"}) {
    EXPECT_TRUE(looks_like_activation(key, false)) << key;
  }
  for (std::string_view const key :
       {"num_experts", "norm_topk_prob", "routerScale", "shared_expert_swiglu_limit",
        "rms_norm_eps", "expert_capacity_factor", "max_position_embeddings", "attention_multiplier",
        "factory", "use_cache", "activated_experts", "moe_intermediate_size", "initializer_range",
        "n_layers_in_prelude", "expert_layer_offset", "attnLogitSoftcap"}) {
    EXPECT_FALSE(looks_like_activation(key, false)) << key;
  }
}

TEST(layer_activation, parameters_that_f32_does_not_hold_are_refused) {
  std::string const base = R"("model_type": "minimax_m3", )";
  for (std::string const members : {R"("swiglu_limit": 1e39, "swiglu_alpha": 1.5)",
                                    R"("swiglu_limit": 7, "swiglu_alpha": 1e-300)",
                                    R"("swiglu_limit": 7, "swiglu_alpha": 1e300)",
                                    R"("swiglu_limit": 1e-300, "swiglu_alpha": 1)"}) {
    EXPECT_THAT(activation_in(base + members).refusal, HasSubstr("a positive number of f32"))
        << members;
  }
}

TEST(layer_activation, lists_of_limits_are_of_the_layers) {
  std::string const step = R"("model_type": "step3p5", "num_hidden_layers": 2, )";
  EXPECT_THAT(activation_in(step + R"("swiglu_limits": [])", {0}).refusal,
              HasSubstr("0 entries, none for layer 0"));
  EXPECT_THAT(activation_in(step + R"("swiglu_limits": [7, 7, 7])", {0}).refusal,
              HasSubstr("3 entries for 2 layers"));
  std::string const one = R"("num_nextn_predict_layers": 1, )";
  EXPECT_EQ(activation_in(step + one + R"("swiglu_limits": [7, 7, 7])", {0}).spec->limit, 7.0F);
  EXPECT_EQ(activation_in(step + R"("swiglu_limits": [null, null])", {0}).spec->kind,
            activation::silu_glu);
}

/// Transformers leaves out of a config what is the default of its class: where that is not plain
/// SiLU, silence is none either.
TEST(layer_activation, soft_caps_of_inkling2_are_there_where_its_config_is_silent) {
  for (std::string const members :
       {R"("model_type": "inkling2", "hidden_act": "silu")",
        R"("model_type": "inkling2_text", "hidden_act": "silu")",
        R"("model_type": "inkling2", "text_config": {"model_type": "inkling2_text",
            "hidden_act": "silu", "mlp_gate_softcap": null})"}) {
    EXPECT_THAT(activation_in(members).refusal, HasSubstr("soft caps")) << members;
  }
  EXPECT_EQ(activation_in(R"("model_type": "inkling_mm_model", "hidden_act": "silu")").spec->kind,
            activation::silu_glu);
}

TEST(layer_activation, hidden_act_of_aria_is_that_of_its_shared_experts) {
  EXPECT_EQ(activation_in(R"("model_type": "aria_text", "hidden_act": "gelu")").spec->kind,
            activation::silu_glu);
}

/// What a key means is known, so that only null leaves it open: a family's default is not for what
/// somebody wrote down.
TEST(layer_activation, values_of_known_keys_are_not_taken_for_silence) {
  for (std::string const members :
       {R"("model_type": "step3p5", "swiglu_limits": {})",
        R"("model_type": "step3p5", "swiglu_limits": false)",
        R"("model_type": "step3p5", "swiglu_limits": "")",
        R"("model_type": "glm5_next", "swiglu_limit": false)",
        R"("model_type": "glm5_next", "swiglu_limit": [])",
        R"("model_type": "gpt_oss", "swiglu_limit": 7,
                                       "swiglu_alpha": {})",
        R"("model_type": "jamba", "hidden_act": [])", R"("model_type": "jamba", "hidden_act": "")",
        R"("model_type": "a", "hidden_act": "silu",
                                       "moe_hidden_act": false)"}) {
    EXPECT_FALSE(activation_in(members).refusal.empty()) << members;
  }
  EXPECT_EQ(activation_in(R"("model_type": "glm5_next", "swiglu_limit": null)").spec->limit, 10.0F);
}

TEST(layer_activation, step_clamps_behind_silu) {
  std::string const step = R"("model_type": "step3p5", "swiglu_limits": [0.0, 7.0])";
  EXPECT_EQ(activation_in(step, {1}).spec->kind, activation::step_glu);
  EXPECT_EQ(activation_in(step, {0}).spec->kind, activation::silu_glu);
}

TEST(layer_activation, limits_of_mtp_layers_follow_those_of_the_backbone) {
  std::string const step =
      R"("model_type": "step3p5", "num_hidden_layers": 2, "num_nextn_predict_layers": 1,
          "swiglu_limits": [0.0, 7.0, 5.0])";
  EXPECT_EQ(activation_in(step, {0}).spec->kind, activation::silu_glu);
  EXPECT_EQ(activation_in(step, {1}).spec->limit, 7.0F);
  EXPECT_EQ(activation_in(step, {2, true}).spec->limit, 5.0F);  // numbered on
  EXPECT_EQ(activation_in(step, {0, true}).spec->limit, 5.0F);  // numbered anew
  EXPECT_THAT(activation_in(step, {1, true}).refusal, HasSubstr("3 entries, none for MTP layer 1"));
}

TEST(layer_activation, experts_without_a_gate_have_functions_of_their_own) {
  activation_query const alone{0, false, false};
  auto const of = [&](std::string const& function) {
    return activation_in(R"("model_type": "nemotron_h", "mlp_hidden_act": ")" + function + "\"",
                         alone);
  };
  EXPECT_EQ(of("relu2").spec->kind, activation::relu2);
  EXPECT_EQ(of("silu").spec->kind, activation::silu);
  EXPECT_THAT(of("swiglu").refusal, HasSubstr("without a gate"));
  EXPECT_THAT(activation_in(R"("model_type": "a", "hidden_act": "relu2")").refusal,
              HasSubstr("with a gate"));
}

TEST(activation_keys, every_row_has_a_source_and_every_limit_a_family_that_clamps) {
  for (activation_key const& row : activation_keys()) {
    EXPECT_FALSE(row.source.empty()) << row.key;
    bool const parameter =
        row.role == activation_role::limit || row.role == activation_role::limits;
    if (!parameter) continue;
    std::string_view types = row.model_types;
    EXPECT_FALSE(types.empty()) << row.key;
    while (!types.empty()) {
      std::string_view const type = types.substr(0, types.find(' '));
      types.remove_prefix(std::min(types.size(), type.size() + 1));
      model_config model;
      model.model_type = type;
      bool const clamps = std::any_of(
          activation_families().begin(), activation_families().end(), [&](auto const& family) {
            return family.clamped && model.is_one_of(family.model_types);
          });
      EXPECT_TRUE(clamps) << row.key << " of " << type;
    }
  }
  for (activation_family const& family : activation_families()) {
    EXPECT_FALSE(family.source.empty()) << family.model_types;
  }
}

TEST(assumptions, are_recorded_and_checked) {
  std::vector<std::string> const texts = {"dialect=D5",
                                          "scale=mx32",
                                          "block=64x32",
                                          "group=8",
                                          "grid=fused",
                                          "gate_up=interleaved",
                                          "orientation=rows",
                                          "hidden=4",
                                          "inter=5",
                                          "experts=6",
                                          "activation=gptoss_glu",
                                          "limit=7",
                                          "alpha=1.5",
                                          "ignore=a",
                                          "ignore=b"};
  auto const assumed = parse_assumptions(texts);
  EXPECT_EQ(assumed.texts, texts);
  EXPECT_EQ(assumed.dialect, "D5");
  EXPECT_EQ(assumed.scale, scale_codec::mx32);
  EXPECT_EQ(assumed.block_cols, 32);
  EXPECT_EQ(assumed.transposed, false);
  EXPECT_EQ(assumed.gate_up, gate_up_layout::interleaved);
  EXPECT_EQ(assumed.experts, 6);
  EXPECT_TRUE(same_activation(*assumed.activation, {activation::gptoss_glu, 1.5F, 7.0F}));
  EXPECT_EQ(assumed.ignored, (std::vector<std::string>{"a", "b"}));
  for (std::string const text : {"x=1",
                                 "dialect=D99",
                                 "scale=col",
                                 "block=128",
                                 "block=0x1",
                                 "block=axb",
                                 "group=",
                                 "group",
                                 "grid=x",
                                 "gate_up=x",
                                 "orientation=x",
                                 "hidden=-1",
                                 "hidden=99999999999999999999",
                                 "=",
                                 "",
                                 "activation=mish",
                                 "activation=step_glu",
                                 "limit=7",
                                 "alpha=1",
                                 "limit=0",
                                 "ignore="}) {
    std::vector<std::string> const one = {text};
    EXPECT_MOE64_ERROR(parse_assumptions(one), errc::invalid_argument, "[assume]", "expected");
  }
}

}  // namespace
}  // namespace moe64::checkpoint
