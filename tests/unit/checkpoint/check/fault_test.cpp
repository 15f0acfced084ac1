// A table of faults: each is planted into a sound synthetic checkpoint and must be found by its own
// rule. That sound ones have none: healthy_test.cpp.
#include "moe64/error.hpp"
#include "support/edited_checkpoint.hpp"
#include "support/stored_checkpoint.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <cstring>
#include <optional>
#include <ostream>

namespace moe64::test {
namespace {

using bytes_of = std::vector<std::byte>;
using plant = std::function<void(edited_checkpoint&)>;

struct planted_fault {
  std::string name;
  std::string like;
  std::string synth;  ///< a fault of synth_options, or empty
  std::string rule;   ///< that must speak; empty: opening fails
  finding_level level = finding_level::error;
  plant edit = {};
  index_t scale_down = 64;
};

void PrintTo(planted_fault const& fault, std::ostream* out) { *out << fault.name; }

std::function<bool(std::string const&)> ending(std::string suffix) {
  return [=](std::string const& name) { return name.ends_with(suffix); };
}

/// Tensors of routed experts of one layer (-1: of all) that end so.
std::function<bool(std::string const&)> experts(index_t layer, std::string suffix) {
  return [=](std::string const& name) {
    return name.find(".experts.") != std::string::npos && name.ends_with(suffix) &&
           (layer < 0 || is_of_layer(name, layer));
  };
}

std::function<double(index_t, double)> times(double factor) {
  return [=](index_t, double number) { return number * factor; };
}

plant scales(index_t layer, std::string suffix, double factor) {
  return [=](edited_checkpoint& made) { made.edit_numbers(experts(layer, suffix), times(factor)); };
}

plant filled(std::string name, std::byte value, double from = 0.0, double to = 1.0) {
  return [=](edited_checkpoint& made) {
    made.edit(ending(name), [=](bytes_of& bytes) {
      auto const size = static_cast<double>(bytes.size());
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(from * size),
                bytes.begin() + static_cast<std::ptrdiff_t>(to * size), value);
    });
  };
}

plant number_at(std::string name, index_t at, double value) {
  return [=](edited_checkpoint& made) {
    made.edit_numbers(ending(name), [=](index_t i, double old) { return i == at ? value : old; });
  };
}

plant renamed(std::string old, std::string now) {
  return [=](edited_checkpoint& made) { made.rename(old, now); };
}

plant configured(std::string old, std::string now) {
  return [=](edited_checkpoint& made) { made.configure(old, now); };
}

std::string const expert3 = "layers.3.mlp.experts.1.up_proj.weight";

void move_by_a_byte(edited_checkpoint& made) {
  made.edit(ending("layers.2.self_attn.o_proj.weight"),
            [](bytes_of& bytes) { std::rotate(bytes.begin(), bytes.begin() + 1, bytes.end()); });
}

void spread_codes(edited_checkpoint& made) {
  made.edit(ending(expert3), [](bytes_of& bytes) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>((i * 2654435761U) >> 13U);
    }
  });
}

void saturate_some(edited_checkpoint& made) {
  made.edit(ending(expert3), [](bytes_of& bytes) {
    for (std::size_t i = 0; i < bytes.size(); i += 20) bytes[i] = std::byte{0x7e};
  });
}

void zero_whole_rows(edited_checkpoint& made) {
  made.edit(ending(expert3), [](bytes_of& bytes) {
    // 512 codes in a row: rows 10 to 29 of 128
    std::fill(bytes.begin() + 10 * 512, bytes.begin() + 30 * 512, std::byte{0});
  });
}

void copy_expert(edited_checkpoint& made) {
  std::string const other = "model.layers.3.mlp.experts.0.up_proj.weight";
  made.copy(other, "model." + expert3);
  made.copy(other + "_scale_inv", "model." + expert3 + "_scale_inv");
}

void forget_scales(edited_checkpoint& made) {  // codes written out as numbers
  made.edit_numbers(experts(1, ".weight"), times(4000));
}

std::vector<planted_fault> const& faults() {
  using enum finding_level;
  static std::string const v3 = "deepseek-v3";
  static std::string const inv = ".weight_scale_inv";
  static std::
      vector<planted_fault> const
          table =
              {
                  // ---- names and files, planted by synth
                  {"dropped_scale", v3, "dropped-scale", "missing-scale"},
                  {"orphan_scale", v3, "orphan-scale", "orphan-scale"},
                  {"duplicate_scale", v3, "duplicate-scale", "duplicate-scale"},
                  {"missing_expert", v3, "missing-expert", "missing-expert"},
                  {"wrong_block_size", v3, "wrong-block-size", "bad-scale"},
                  {"wrong_scale_shape", v3, "wrong-scale-shape", "bad-scale"},
                  {"missing_declaration", v3, "missing-declaration", "no-dialect"},
                  {"duplicate_tensor", v3, "duplicate-tensor", ""},
                  {"wrong_index", v3, "wrong-index", ""},
                  {"missing_shard", v3, "missing-shard", ""},
                  {"truncated_shard", v3, "truncated-shard", ""},
                  {"missing_embeddings", v3, "missing-embeddings", "missing-tensor"},
                  {"missing_router", v3, "missing-router", "missing-tensor"},
                  {"missing_attention", v3, "missing-attention", "missing-tensor"},
                  {"missing_shared_expert", v3, "missing-shared-expert", "missing-tensor"},
                  {"missing_router_of_gpt_oss", "gpt-oss", "missing-router", "missing-tensor"},
                  {"missing_attention_of_a_hybrid", "qwen3.5", "missing-attention",
                   "missing-tensor"},
                  {"missing_router_of_mistral", "mistral-large-3", "missing-router",
                   "missing-tensor"},
                  {"missing_shared_expert_of_v4", "deepseek-v4-flash", "missing-shared-expert",
                   "missing-tensor"},
                  {"missing_head", v3, "", "missing-tensor", error,
                   renamed("lm_head.weight", "lm_haed.weight")},
                  {"missing_kv", v3, "", "missing-tensor", error,
                   renamed("kv_b_proj", "kv_x_proj")},
                  {"missing_score_bias", v3, "", "missing-tensor", error,
                   renamed("e_score_correction_bias", "e_score_correction_bais")},
                  {"missing_dense_mlp", v3, "", "missing-tensor", error,
                   renamed("layers.0.mlp.up_proj", "layers.0.mlp.pu_proj")},
                  {"missing_norm", v3, "", "missing-tensor", error,
                   renamed("layers.4.input_layernorm", "layers.4.input_layernrom")},
                  {"more_layers_stated", v3, "", "missing-tensor", error,
                   configured("\"num_hidden_layers\": 6", "\"num_hidden_layers\": 7")},
                  {"more_experts_stated", v3, "", "expert-count", error,
                   configured("\"n_routed_experts\": 4", "\"n_routed_experts\": 5")},
                  {"powers_of_two_stated", v3, "", "not-power-of-two", error,
                   configured("\"quant_method\": \"fp8\"",
                              "\"quant_method\": \"fp8\", \"scale_fmt\": \"ue8m0\"")},
                  // ---- codes and scales by themselves
                  {"nan_code", v3, "nan-code", "nan-code"},
                  {"zero_scale", v3, "zero-scale", "zero-scale"},
                  {"nan_scale", v3, "nan-scale", "non-finite-scale"},
                  {"negative_scale", v3, "negative-scale", "negative-scale"},
                  {"uneven_scale", "deepseek-v3.1", "uneven-scale", "not-power-of-two"},
                  {"subnormal_scale", v3, "", "subnormal-scale", warning,
                   number_at(expert3 + "_scale_inv", 0, 1e-40)},
                  {"nan_in_a_router", v3, "", "non-finite-value", error,
                   number_at("layers.3.mlp.gate.weight", 5, NAN)},
                  {"infinity_in_a_norm", v3, "", "non-finite-value", error,
                   number_at("model.norm.weight", 1, INFINITY)},
                  {"random_bytes", v3, "", "nan-code", error, spread_codes},
                  {"saturated_codes", v3, "", "saturated", warning, saturate_some},
                  {"constant_codes", v3, "", "constant", warning, filled(expert3, std::byte{0x38})},
                  {"zero_matrix", v3, "zero-matrix", "all-zero", warning},
                  {"zero_router", v3, "", "all-zero", warning,
                   filled("layers.3.mlp.gate.weight", std::byte{0})},
                  {"zero_norm", v3, "", "all-zero", warning,
                   filled("layers.3.input_layernorm.weight", std::byte{0})},
                  {"zero_hole", v3, "zero-hole", "zero-hole", error, {}, 16},
                  {"zero_hole_in_int4",
                   "kimi-k2-thinking",
                   "zero-hole",
                   "zero-hole",
                   error,
                   {},
                   16},
                  {"zero_hole_in_bf16", "glm-4.7-flash", "", "zero-hole", error,
                   filled("model.embed_tokens.weight", std::byte{0}, 0.3003, 0.4007), 16},
                  {"zero_rows", v3, "", "zero-rows", warning, zero_whole_rows, 16},
                  {"wrong_stated_shape", "kimi-k2-thinking", "", "weight-shape", error,
                   filled("layers.3.mlp.experts.1.up_proj.weight_shape", std::byte{1})},
                  {"zero_global_scale", "deepseek-v3-nvfp4", "", "bad-global-scale", error,
                   number_at("layers.3.mlp.experts.1.up_proj.weight_scale_2", 0, 0.0)},
                  {"negative_activation_scale", "qwen3-30b-modelopt-fp8", "",
                   "bad-activation-scale", error,
                   number_at("layers.3.mlp.experts.1.up_proj.input_scale", 0, -1.0)},
                  // ---- sizes
                  {"reciprocal_scales", v3, "reciprocal-scale", "scale-direction"},
                  {"inverted_layer", v3, "inverted-layer", "weight-size"},
                  {"inverted_layer_in_exponents", "minimax-m3", "inverted-layer", "weight-size"},
                  {"inverted_layer_of_nvfp4", "deepseek-v3-nvfp4", "inverted-layer", "weight-size"},
                  {"inverted_layer_of_divided_nvfp4", "qwen3-30b-nvfp4", "inverted-layer",
                   "weight-size"},
                  {"inverted_layer_of_int4", "kimi-k2-thinking", "inverted-layer", "weight-size"},
                  {"inverted_layer_of_stacks", "qwen3-vl", "inverted-layer", "weight-size"},
                  {"inverted_up", v3, "inverted-projection", "weight-size"},
                  {"inverted_matrix", v3, "inverted-matrix", "weight-size"},
                  {"inverted_scalar", "mixtral", "inverted-matrix", "weight-size"},
                  {"layer_times_448", v3, "scaled-layer", "weight-size"},
                  {"layer_times_448_in_exponents", "deepseek-v4-flash", "scaled-layer",
                   "weight-size"},
                  {"layer_times_16", v3, "", "layer-size", warning, scales(3, inv, 16.0)},
                  {"layer_divided_by_448", v3, "", "layer-size", warning,
                   scales(3, inv, 1.0 / 448.0)},
                  {"two_layers_divided_by_448", v3, "", "layer-size", warning,
                   [](edited_checkpoint& made) {
                     scales(2, ".weight_scale_inv", 1.0 / 448.0)(made);
                     scales(4, ".weight_scale_inv", 1.0 / 448.0)(made);
                   }},
                  {"up_times_16", v3, "", "projection-size", warning,
                   scales(-1, "up_proj" + inv, 16.0)},
                  {"down_divided_by_16", v3, "", "projection-size", warning,
                   scales(-1, "down_proj" + inv, 1.0 / 16.0)},
                  {"all_experts_divided_by_448", v3, "", "experts-size", warning,
                   scales(-1, inv, 1.0 / 448.0)},
                  {"expert_times_16", v3, "", "expert-size", warning,
                   scales(3, "experts.1.down_proj" + inv, 16.0)},
                  {"expert_divided_by_64", v3, "", "small-expert", note,
                   scales(3, "experts.1.down_proj" + inv, 1.0 / 64.0)},
                  {"unit_scales", v3, "unit-scale", "unit-scale"},
                  {"unit_scales_of_mxfp4", "gpt-oss", "unit-scale", "unit-scale"},
                  {"unit_scales_of_int4", "kimi-k2-thinking", "unit-scale", "unit-scale"},
                  {"unit_scales_of_one_layer", "qwen3-30b", "", "unit-scale", error,
                   [](edited_checkpoint& made) {
                     made.edit_numbers(experts(2, ".weight_scale_inv"),
                                       [](index_t, double) { return 1.0; });
                   }},
                  {"router_times_1000", v3, "", "tensor-size", warning,
                   [](edited_checkpoint& made) {
                     made.edit_numbers(ending("layers.3.mlp.gate.weight"), times(1000));
                   }},
                  {"attention_moved_by_a_byte", v3, "", "weight-size", error, move_by_a_byte},
                  {"codes_taken_for_numbers", "glm-4.7-flash", "", "weight-size", error,
                   forget_scales},
                  {"same_experts", v3, "", "same-experts", warning, copy_expert},
              };
  return table;
}

class every_planted_fault : public testing::TestWithParam<planted_fault> {};

TEST_P(every_planted_fault, is_found) {
  planted_fault const& fault = GetParam();
  synth_options options;
  options.like = fault.like;
  options.scale_down = fault.scale_down;
  options.layers = 6;
  options.fault = fault.synth;
  edited_checkpoint made(options);
  if (fault.edit) fault.edit(made);
  std::optional<check_report> report;
  try {
    report = made.check();
  } catch (error const& e) {
    EXPECT_TRUE(fault.rule.empty()) << e.what();
    return;
  }
  ASSERT_FALSE(fault.rule.empty()) << texts_of(*report);
  index_t found = 0;
  for (rule_total const& total : report->rules) {
    found += total.rule == fault.rule && total.level == fault.level ? total.count : 0;
  }
  EXPECT_GT(found, 0) << texts_of(*report);
  if (fault.level == finding_level::error) {
    EXPECT_FALSE(report->ok());
  } else {
    EXPECT_TRUE(report->ok()) << texts_of(*report);
  }
}

INSTANTIATE_TEST_SUITE_P(check, every_planted_fault, testing::ValuesIn(faults()),
                         [](auto const& entry) { return entry.param.name; });

TEST(check_faults, are_at_least_forty) { EXPECT_GE(faults().size(), 40U); }

}  // namespace
}  // namespace moe64::test
