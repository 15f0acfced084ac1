#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "moe64/index.hpp"
#include "support/checkpoint_builder.hpp"
#include "support/error_matcher.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

using testing::HasSubstr;
using enum file_dtype;

std::string const fp8_block =
    R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})";
std::string const qwen = R"("model_type": "qwen3_moe", )" + fp8_block;
std::string const module_1 = "model.layers.0.mlp.experts.1.up_proj";

std::vector<index_t> blocks(index_t rows, index_t cols) {
  return {ceil_div(rows, 128), ceil_div(cols, 128)};
}

expert_tensors block_tensors(index_t layer = 0) {
  expert_tensors tensors;
  tensors.prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
  tensors.scales = ".weight_scale_inv";
  tensors.scale_type = bf16;
  tensors.scale_shape = blocks;
  return tensors;
}

checkpoint_builder sound_checkpoint(std::string const& members = qwen, index_t layers = 1) {
  checkpoint_builder builder;
  builder.config(case_config(members, layers));
  for (index_t layer = 0; layer < layers; ++layer) add_experts(builder, block_tensors(layer));
  return builder;
}

/// Exactly these errors, in the order of their rules.
void expect_errors(checkpoint_builder& builder, std::initializer_list<std::string_view> rules,
                   std::string_view text = {}, std::vector<std::string> const& assumed = {}) {
  auto const resolved = builder.resolve(assumed);
  std::vector<std::string_view> found;
  for (auto const& entry : resolved.found.kept()) {
    if (entry.level == finding_level::error) found.push_back(entry.rule);
  }
  EXPECT_THAT(found, testing::UnorderedElementsAreArray(rules)) << all_texts(resolved);
  EXPECT_THAT(all_texts(resolved), HasSubstr(std::string(text)));
  if (rules.size() != 0) {
    EXPECT_THROW(require_sound(resolved), error);
  }
}

// ---- tensors that are missing, twice or too many
// --------------------------------------------------

TEST(resolve, sound_checkpoint_has_nothing_to_tell) {
  auto builder = sound_checkpoint();
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.found.kept().empty()) << all_texts(resolved);
  EXPECT_EQ(resolved.weights_found, 9);
  EXPECT_EQ(resolved.scales_found, 9);
  EXPECT_EQ(resolved.matched, 9);
  ASSERT_NE(resolved.layer(0), nullptr);
  EXPECT_EQ(resolved.layer(1), nullptr);
  EXPECT_EQ(resolved.layer(0, true), nullptr);
  EXPECT_EQ(resolved.activation->kind, activation::silu_glu);
}

TEST(resolve, two_scales_of_one_weight) {
  auto builder = sound_checkpoint();
  builder.add(module_1 + ".weight_scale", bf16, {192, 1});
  expect_errors(builder, {"duplicate-scale"}, "has two scales");
}

TEST(resolve, scale_beside_numbers) {
  auto builder = sound_checkpoint();
  builder.add(module_1 + ".weight", bf16, {192, 320});
  expect_errors(builder, {"scale-without-codes"}, "which needs no scale");
}

TEST(resolve, plain_expert_among_quantised_ones) {
  auto builder = sound_checkpoint();
  builder.add(module_1 + ".weight", bf16, {192, 320}).remove(module_1 + ".weight_scale_inv");
  expect_errors(builder, {"mixed-formats"}, "other experts of the layer are");
}

TEST(resolve, gap_in_expert_ids) {
  auto builder = sound_checkpoint();
  builder.remove(module_1 + ".weight").remove(module_1 + ".weight_scale_inv");
  expect_errors(builder, {"missing-expert"}, "layer 0 has no up matrix of expert 1");
}

TEST(resolve, last_expert_is_missing) {
  auto builder = sound_checkpoint();
  std::string const last = "model.layers.0.mlp.experts.2.up_proj";
  builder.remove(last + ".weight").remove(last + ".weight_scale_inv");
  expect_errors(builder, {"expert-count"}, "layer 0 has 2 up matrices");
}

TEST(resolve, more_experts_than_the_config_states) {
  checkpoint_builder builder;
  builder.config(case_config(qwen, 1, case_extents::hidden, case_extents::inter, 2));
  add_experts(builder, block_tensors());
  expect_errors(builder, {"expert-count", "expert-count", "expert-count"}, "expected 2 experts");
  expect_errors(builder, {}, "", {"experts=3"});
}

TEST(resolve, missing_projection) {
  auto builder = sound_checkpoint();
  for (int expert = 0; expert < 3; ++expert) {
    std::string const module = fmt::format("model.layers.0.mlp.experts.{}.gate_proj", expert);
    builder.remove(module + ".weight").remove(module + ".weight_scale_inv");
  }
  expect_errors(builder, {"missing-projection"}, "layer 0 has no gate matrices");
}

TEST(resolve, same_expert_under_two_prefixes) {
  auto builder = sound_checkpoint();
  builder.add("language_model." + module_1 + ".weight", f8_e4m3, {192, 320});
  builder.add("language_model." + module_1 + ".weight_scale_inv", bf16, {2, 3});
  auto const resolved = builder.resolve();
  EXPECT_EQ(resolved.found.count("duplicate-expert"), 1) << all_texts(resolved);
  EXPECT_FALSE(resolved.layers.front().sound);
}

TEST(resolve, layer_named_in_two_ways) {
  auto builder = sound_checkpoint();
  builder.add("model.layers.0.block_sparse_moe.experts.3.w1.weight", f8_e4m3, {192, 320});
  builder.add("model.layers.0.block_sparse_moe.experts.3.w1.weight_scale_inv", bf16, {2, 3});
  auto const resolved = builder.resolve();
  EXPECT_EQ(resolved.found.count("mixed-schemas"), 1) << all_texts(resolved);
}

TEST(resolve, tensor_of_an_expert_that_is_not_understood) {
  auto builder = sound_checkpoint();
  builder.add(module_1 + ".weight_zero_point", i8, {192, 1});
  expect_errors(builder, {"unknown-expert-tensor"}, "weight_zero_point");
  EXPECT_FALSE(builder.resolve().layers.front().sound);
}

TEST(resolve, no_experts_at_all) {
  checkpoint_builder builder;
  builder.config(case_config(R"("model_type": "llama")"));
  builder.add("model.layers.0.mlp.up_proj.weight", bf16, {8, 8});
  expect_errors(builder, {"no-experts"});
}

// ---- shapes
// -----------------------------------------------------------------------------------------

TEST(resolve, shape_that_the_config_does_not_state) {
  auto builder = sound_checkpoint();
  builder.add(module_1 + ".weight", f8_e4m3, {192, 384});
  expect_errors(builder, {"geometry"},
                "192 outputs of 384 inputs, but the config states 192 of 320");
}

TEST(resolve, without_a_config_geometry_only_has_to_agree_with_itself) {
  checkpoint_builder builder;
  builder.config("{" + qwen + R"(, "hidden_act": "silu"})");
  add_experts(builder, block_tensors());
  expect_errors(builder, {});
  builder.add(module_1 + ".weight", f8_e4m3, {192, 384});
  expect_errors(builder, {"mixed-formats"});
}

TEST(resolve, down_that_does_not_fit_gate) {
  checkpoint_builder builder;
  builder.config("{" + qwen + R"(, "hidden_act": "silu"})");
  add_experts(builder, block_tensors());
  for (int expert = 0; expert < 3; ++expert) {
    builder.add(fmt::format("model.layers.0.mlp.experts.{}.down_proj.weight", expert), f8_e4m3,
                {320, 256});
  }
  expect_errors(builder, {"mixed-formats"}, "gate is [192, 320]");
}

TEST(resolve, ranks_and_empty_extents) {
  for (std::vector<index_t> const& shape :
       {std::vector<index_t>{192}, {192, 320, 1}, {0, 320}, {192, 0}, {}}) {
    auto builder = sound_checkpoint();
    builder.add(module_1 + ".weight", f8_e4m3, shape);
    expect_errors(builder, {"bad-shape"}, "expected 2 dimensions");
  }
}

TEST(resolve, extents_that_overflow_are_an_error) {
  checkpoint_builder builder;
  builder.config(
      "{"
      R"("model_type": "x", "hidden_act": "silu", "expert_dtype": "fp4", )" +
      fp8_block + "}");
  index_t const huge = std::numeric_limits<index_t>::max();
  for (std::string const w : {"w1", "w2", "w3"}) {
    builder.add("layers.0.ffn.experts.0." + w + ".weight", i8, {0, huge});
    builder.add("layers.0.ffn.experts.0." + w + ".scale", f8_e8m0, {0, huge});
  }
  expect_errors(builder, {"bad-shape", "bad-shape", "bad-shape"});
}

TEST(resolve, packed_rows_with_a_partial_word) {
  dialect_case const* kimi = nullptr;
  for (auto const& entry : dialect_cases()) kimi = entry.id == "D13" ? &entry : kimi;
  ASSERT_NE(kimi, nullptr);
  checkpoint_builder builder;
  builder.config(case_config(kimi->config, 1, 44, 36, 1));
  expert_tensors tensors;
  tensors.values = ".weight_packed";
  tensors.value_type = i32;
  tensors.values_per_element = 8;
  tensors.scales = ".weight_scale";
  tensors.scale_type = bf16;
  tensors.scale_shape = [](index_t rows, index_t cols) {
    return std::vector<index_t>{rows, ceil_div(cols, 32)};
  };
  add_experts(builder, tensors, 1, 44, 36);
  auto const resolved = builder.resolve();
  ASSERT_TRUE(resolved.sound()) << all_texts(resolved);
  auto const& gate = resolved.layers.front().gate.format;
  EXPECT_EQ(gate.cols, 44);
  EXPECT_EQ(gate.values.row_stride, 48);
  EXPECT_EQ(value_slice_bytes(gate), 36 * 24);
  EXPECT_EQ(gate.repack, checkpoint::value_repack::int4_from_offset);
}

TEST(resolve, gate_and_up_of_different_scale_types) {
  auto builder = sound_checkpoint();
  for (int expert = 0; expert < 3; ++expert) {
    builder.add(fmt::format("model.layers.0.mlp.experts.{}.up_proj.weight_scale_inv", expert), f32,
                {2, 3});
  }
  expect_errors(builder, {"mixed-formats"}, "BF16 blk scales");
}

TEST(resolve, biases) {
  auto const gpt_oss = [] {
    for (auto const& entry : dialect_cases()) {
      if (entry.id == "D14") return entry.build();
    }
    return checkpoint_builder();
  };
  auto builder = gpt_oss();
  builder.add("model.layers.0.mlp.experts.down_proj_bias", bf16, {3, 319});
  expect_errors(builder, {"bad-bias"}, "expected [3, 320]");
  auto some = sound_checkpoint();
  some.add(module_1 + ".bias", bf16, {192});
  expect_errors(some, {"missing-bias"}, "has a bias");
  for (int expert : {0, 2}) {
    some.add(fmt::format("model.layers.0.mlp.experts.{}.up_proj.bias", expert), bf16, {192});
  }
  expect_errors(some, {"mixed-formats"});
  for (int expert : {0, 1, 2}) {
    some.add(fmt::format("model.layers.0.mlp.experts.{}.gate_proj.bias", expert), bf16, {192});
  }
  expect_errors(some, {});
  EXPECT_TRUE(some.resolve().layers.front().up.has_bias);
}

// ---- layers
// -----------------------------------------------------------------------------------------

TEST(resolve, layer_that_the_config_has_and_the_files_have_not) {
  auto builder = sound_checkpoint(qwen + R"(, "mlp_only_layers": [])", 2);
  builder.config(case_config(qwen + R"(, "mlp_only_layers": [])", 3));
  expect_errors(builder, {"missing-layer"}, "layer 2 has no experts");
  builder.config(case_config(qwen + R"(, "mlp_only_layers": [1, 2])", 3));
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound());
  EXPECT_EQ(resolved.found.count("unexpected-layer"), 1);
}

TEST(resolve, mtp_layers_are_apart) {
  auto builder = sound_checkpoint(qwen, 3);
  builder.config(case_config(qwen + R"(, "num_nextn_predict_layers": 1)", 2));
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  ASSERT_EQ(resolved.layers.size(), 3U);
  EXPECT_TRUE(resolved.layers[2].mtp);
  EXPECT_NE(resolved.layer(2, true), nullptr);
  EXPECT_EQ(resolved.layer(2), nullptr);
  builder.config(case_config(qwen + R"(, "num_nextn_predict_layers": 2)", 2));
  EXPECT_EQ(builder.resolve().found.count("mtp-layers"), 1);
}

TEST(resolve, mtp_layers_of_their_own_numbering_do_not_collide) {
  std::string const qwen35 = R"("model_type": "qwen3_5_moe", )" + fp8_block;
  auto builder = sound_checkpoint(qwen35, 1);
  expert_tensors mtp = block_tensors();
  mtp.prefix = "mtp.layers.0.mlp.experts.";
  add_experts(builder, mtp);
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  ASSERT_EQ(resolved.layers.size(), 2U);
  EXPECT_FALSE(resolved.layers[0].mtp);
  EXPECT_TRUE(resolved.layers[1].mtp);
  EXPECT_EQ(resolved.layers[1].dialect, "D9");
}

// ---- declarations and assumptions
// -------------------------------------------------------------------

TEST(resolve, declaration_without_a_dialect_lists_what_does_not_fit) {
  auto builder =
      sound_checkpoint(R"("model_type": "x", "quantization_config": {"quant_method": "awq"})");
  auto const resolved = builder.resolve();
  EXPECT_EQ(resolved.found.count("no-dialect"), 9);
  EXPECT_THAT(all_texts(resolved), HasSubstr("the declaration 'awq' (awq) has no dialect"));
  auto other =
      sound_checkpoint(R"("model_type": "x", "quantization_config": {"quant_method": "mxfp8"})");
  EXPECT_THAT(all_texts(other.resolve()), HasSubstr("D12 is not named like mlp_proj"));
}

TEST(resolve, assumed_dialect_overrides_the_declaration) {
  auto builder =
      sound_checkpoint(R"("model_type": "x", "quantization_config": {"quant_method": "awq"})");
  expect_errors(builder, {}, "", {"dialect=D8", "block=128x128"});
  auto const resolved = builder.resolve({"dialect=D8", "block=128x128"});
  EXPECT_EQ(resolved.layers.front().dialect, "D8");
  EXPECT_THAT(resolved.assumed, testing::ElementsAre("dialect=D8", "block=128x128"));
  auto const wrong = builder.resolve({"dialect=D5"});
  EXPECT_THAT(all_texts(wrong), HasSubstr("D5 has its scales in 'weight_scale'"));
}

TEST(resolve, assumed_scale_decides_between_candidates) {
  checkpoint_builder builder;
  builder.config(case_config(R"("model_type": "x")"));
  expert_tensors tensors;
  tensors.scales = ".weight_scale";
  tensors.scale_shape = [](index_t rows, index_t) { return std::vector<index_t>{rows, 1}; };
  add_experts(builder, tensors);
  auto const undeclared = builder.resolve();
  EXPECT_EQ(undeclared.found.count("no-dialect"), 9);
  EXPECT_THAT(all_texts(undeclared),
              HasSubstr("nothing declares how it is quantised; candidates: D"));
  auto const assumed = builder.resolve({"scale=row"});
  EXPECT_TRUE(assumed.sound()) << all_texts(assumed);
  EXPECT_EQ(assumed.layers.front().gate.format.layout, granularity::row());
}

TEST(resolve, block_that_nothing_states) {
  auto builder = sound_checkpoint(
      R"("model_type": "x", "quantization_config": {"quant_method": "compressed-tensors", "format":
      "float-quantized", "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8,
      "type": "float", "strategy": "block"}}}})");
  for (int expert = 0; expert < 3; ++expert) {
    for (std::string const part : {"gate_proj", "up_proj", "down_proj"}) {
      std::string const module = fmt::format("model.layers.0.mlp.experts.{}.{}", expert, part);
      builder.remove(module + ".weight_scale_inv");
      builder.add(module + ".weight_scale", bf16,
                  part == "down_proj" ? std::vector<index_t>{3, 2} : std::vector<index_t>{2, 3});
    }
  }
  EXPECT_EQ(builder.resolve().found.count("missing-block"), 9);
  expect_errors(builder, {}, "", {"block=128x128"});
}

TEST(resolve, lists_and_tensors_that_disagree_are_told) {
  auto builder = sound_checkpoint(
      R"("model_type": "qwen3_moe", "quantization_config": {"quant_method": "fp8",
      "weight_block_size": [128, 128], "modules_to_not_convert": ["mlp.experts.0.up_proj"]})");
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound());
  EXPECT_EQ(resolved.found.count("skipped-but-quantised"), 1);
}

TEST(resolve, scale_types) {
  auto unusual = sound_checkpoint(R"("model_type": "deepseek_v3", )" + fp8_block);
  auto const resolved = unusual.resolve();
  EXPECT_TRUE(resolved.sound());
  EXPECT_EQ(resolved.found.count("unusual-scale-type"), 9);
  auto impossible = sound_checkpoint();
  impossible.add(module_1 + ".weight_scale_inv", u8, {2, 3});
  expect_errors(impossible, {"bad-scale"}, "is U8, which blk scales cannot be");
}

// ---- modules beside the experts
// ---------------------------------------------------------------------

TEST(resolve, dense_modules_follow_the_declaration_of_the_rest) {
  dialect_case const* v4 = nullptr;
  for (auto const& entry : dialect_cases()) v4 = entry.id == "D4" ? &entry : v4;
  checkpoint_builder builder = v4->build();
  builder.add("layers.0.attn.wq_a.weight", f8_e4m3, {256, 320});
  builder.add("layers.0.attn.wq_a.scale", f8_e8m0, {2, 3});
  builder.add("layers.0.attn.norm.weight", f32, {320});
  builder.add("layers.0.hash.table.weight", i32, {64});
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  ASSERT_EQ(resolved.dense.size(), 1U);
  EXPECT_EQ(resolved.dense.front().format.row->id, "D3");
  EXPECT_EQ(resolved.dense.front().format.scales, checkpoint::scale_codec::blk_pow2);
  builder.remove("layers.0.attn.wq_a.scale");
  expect_errors(builder, {"missing-scale"}, "layers.0.attn.wq_a.weight");
  builder.add("layers.0.attn.wq_a.scale", f8_e8m0, {2, 3}).remove("layers.0.attn.wq_a.weight");
  expect_errors(builder, {"orphan-scale"}, "layers.0.attn.wq_a.scale");
}

TEST(resolve, scale_may_be_an_ordinary_parameter) {
  auto builder = sound_checkpoint();
  builder.add("model.layers.0.router.scale", bf16, {320});
  builder.add("model.layers.0.norm.scale", bf16, {320})
      .add("model.layers.0.norm.weight", bf16, {320});
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.found.kept().empty()) << all_texts(resolved);
  EXPECT_TRUE(resolved.dense.empty());
}

TEST(resolve, codes_under_a_name_without_rules) {
  auto builder = sound_checkpoint();
  builder.add("model.embedding_table", f8_e4m3, {4, 4});
  expect_errors(builder, {"missing-scale"}, "its name says nothing about a scale");
}

// ---- findings
// ------------------------------------------------------------------------------------

TEST(resolve, findings_are_bounded_and_counted) {
  checkpoint_builder builder;
  builder.config(case_config(qwen, 1, 64, 32, 400));
  expert_tensors tensors = block_tensors();
  tensors.scales.clear();
  add_experts(builder, tensors, 400, 64, 32);
  auto const resolved = builder.resolve();
  EXPECT_EQ(resolved.found.count("missing-scale"), 1200);
  EXPECT_EQ(resolved.found.kept().size(), 32U);
  EXPECT_EQ(resolved.found.omitted(), 1200 - 32);
  EXPECT_MOE64_ERROR(require_sound(resolved), errc::missing_scale, "[checkpoint]",
                     "(and 1199 more errors)");
}

TEST(resolve, messages_are_safe_to_print_and_bounded) {
  auto builder = sound_checkpoint();
  builder.add(module_1 + ".\x1b[2J" + std::string(5000, 'x'), f8_e4m3, {1});
  auto const resolved = builder.resolve();
  ASSERT_EQ(resolved.found.count("unknown-expert-tensor"), 1);
  std::string const& text = resolved.found.kept().front().text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_LT(text.size(), 400U);
}

TEST(resolve, a_hundred_thousand_tensors_are_quick) {
  checkpoint_builder builder;
  index_t const layers = 60;
  builder.config(case_config(qwen + R"(, "modules_to_not_convert": ["lm_head", "re:.*gate$"])",
                             layers, 64, 32, 256));
  for (index_t layer = 0; layer < layers; ++layer) {
    add_experts(builder, block_tensors(layer), 256, 64, 32);
  }
  auto const begin = std::chrono::steady_clock::now();
  auto const resolved = builder.resolve();
  std::chrono::duration<double> const seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  EXPECT_EQ(resolved.matched, 60 * 256 * 3);
  EXPECT_LT(seconds.count(), 10.0);  // measured: 0.1 s; the rest is for sanitizers
}

}  // namespace
}  // namespace moe64::test
