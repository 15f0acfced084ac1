// Adapters that cannot be merged: each is refused by name, and nothing is written.

#include "checkpoint/naming/adapter_path.hpp"
#include "moe64/cpu.hpp"
#include "moe64/merge.hpp"
#include "support/adapter_builder.hpp"
#include "support/error_matcher.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

namespace moe64::test {
namespace {

constexpr index_t hidden = case_extents::hidden;
constexpr index_t inter = case_extents::inter;
constexpr index_t experts = case_extents::experts;
constexpr char const* experts_path = "model.layers.0.mlp.experts";
constexpr char const* query = "model.layers.0.self_attn.q_proj";

class merge_refusals : public ::testing::Test {
 protected:
  merge_refusals() {
    for (dialect_case const& c : dialect_cases()) {
      if (c.id == "D1") builder_ = c.build();
    }
    builder_.add(std::string(query) + ".weight", file_dtype::bf16, {hidden, hidden});
    builder_.add("lm_head.weight", file_dtype::bf16, {10, hidden});
    write_checkpoint(base_, builder_, plausible_tensors(builder_), 1);
    reader_.emplace(base_.path().string());
    made_.add_experts(experts_path, experts, hidden, inter);
    made_.add(query, 4, hidden, hidden);
  }

  /// Merging fails so, checking that the adapter fits does too, and there is no output.
  void expect(errc code, std::initializer_list<std::string_view> parts) {
    made_.write(adapter_);
    merge_options options;
    options.to = convert_target::bf16;
    EXPECT_TRUE(throws_error(
        [&] { merge(*reader_, adapter_.path().string(), out_.file("out"), options, cpu_stream()); },
        code, parts));
    EXPECT_TRUE(
        throws_error([&] { static_cast<void>(check_adapter(*reader_, adapter_.path().string())); },
                     code, parts));
    EXPECT_FALSE(out_.has("out"));
  }

  checkpoint_builder builder_;
  temp_folder base_;
  temp_folder adapter_;
  temp_folder out_;
  adapter_builder made_;
  std::optional<checkpoint_reader> reader_;
};

TEST_F(merge_refusals, what_fits_fits) {
  made_.write(adapter_);
  adapter_fit const fit = check_adapter(*reader_, adapter_.path().string());
  EXPECT_EQ(fit.pairs, 3);
  EXPECT_EQ(fit.modules, 1 + 3 * experts);
  EXPECT_EQ(fit.bytes, static_cast<index_t>(adapter_.read("adapter_model.safetensors").size()));
  EXPECT_EQ(check_adapter(*reader_, adapter_.file("adapter_model.safetensors")).pairs, 3);
}

TEST_F(merge_refusals, kinds_and_options_of_adapters) {
  struct {
    char const* key;
    char const* value;
  } const changes[] = {{"use_dora", "true"},
                       {"modules_to_save", "[\"lm_head\"]"},
                       {"trainable_token_indices", "[1, 2]"},
                       {"bias", "\"all\""},
                       {"lora_bias", "true"},
                       {"fan_in_fan_out", "true"},
                       {"use_qalora", "true"},
                       {"alora_invocation_tokens", "[5]"},
                       {"layer_replication", "[[0, 4]]"},
                       {"init_lora_weights", "\"pissa\""},
                       {"init_lora_weights", "\"olora\""},
                       {"a_key_of_tomorrow", "3"}};
  for (auto const& [key, value] : changes) {
    made_.members[key] = value;
    expect(errc::unsupported, {"[merge]", key});
    made_.members.erase(key);
  }
  for (auto const& [key, value] : {std::pair{"a_key_of_tomorrow", "null"},
                                   {"use_dora", "false"},
                                   {"bias", "\"none\""},
                                   {"init_lora_weights", "true"},
                                   {"lora_dropout", "0.1"}}) {
    made_.members[key] = value;
    made_.write(adapter_);
    EXPECT_EQ(check_adapter(*reader_, adapter_.path().string()).pairs, 3) << key;
  }
  made_.members["peft_type"] = "\"LOHA\"";
  expect(errc::unsupported, {"LOHA", "LORA"});
}

TEST_F(merge_refusals, scalings_that_are_not_finite) {
  for (char const* const value : {"NaN", "Infinity", "-Infinity"}) {
    made_.members["lora_alpha"] = value;
    expect(errc::malformed_file, {"adapter_config.json: lora_alpha", value, "finite"});
  }
  made_.members["lora_alpha"] = "8";
  made_.members["alpha_pattern"] = R"({"q_proj": Infinity})";
  expect(errc::malformed_file, {"alpha_pattern", "Infinity"});
}

TEST_F(merge_refusals, ranks) {
  made_.members["r"] = "5";
  expect(errc::shape_mismatch, {"rank 5", experts_path});
  made_.members["r"] = "0";
  expect(errc::malformed_file, {"adapter_config.json: r", "0"});
  made_.members["r"] = "4";
  made_.members["rank_pattern"] = R"({"q_proj": 2})";
  expect(errc::shape_mismatch, {"rank 2", query});
  made_.members["rank_pattern"] = R"({"q_proj": 2.5})";
  expect(errc::malformed_file, {"rank_pattern", "2.5"});
  made_.members["rank_pattern"] = "{\"(?=q)\": 2}";
  expect(errc::unsupported, {"(?=q)"});
}

TEST_F(merge_refusals, adapters_of_other_models) {
  adapter_builder const good = made_;
  made_.add("model.layers.7.self_attn.q_proj", 4, hidden, hidden);
  expect(errc::invalid_argument, {"model.layers.7.self_attn.q_proj", "another model"});
  made_ = good;
  made_.add(query, 4, hidden + 2, hidden);
  expect(errc::shape_mismatch, {query, "322", "320", "another model"});
  made_ = good;
  made_.add_experts("model.layers.1.mlp.experts", experts, hidden, inter);
  expect(errc::invalid_argument, {"model.layers.1.mlp.experts", "layer 1"});
  made_ = good;
  made_.add_experts(experts_path, experts + 1, hidden, inter);
  expect(errc::shape_mismatch, {experts_path, "3 experts"});
  made_ = good;
  made_.add_experts(experts_path, experts, inter, hidden);
  expect(errc::shape_mismatch, {experts_path});
  made_ = good;
  made_.add("visual.layers.0.mlp.experts.0.up_proj", 4, hidden, inter);
  expect(errc::invalid_argument, {"visual.layers.0", "experts of the base are at"});
  made_ = good;
  made_.add("model.layers.0.mlp.experts.3.up_proj", 4, hidden, inter);
  expect(errc::invalid_argument, {"experts.3.up_proj", "3 experts"});
  made_ = good;
  made_.add("model.layers.0.mlp.experts.1.up_proj", 4, hidden, inter);
  expect(errc::malformed_file, {"both change", "experts.1.up_proj"});
}

TEST_F(merge_refusals, parameters_that_the_config_does_not_name) {
  made_.members["target_parameters"] = R"(["experts.down_proj"])";
  expect(errc::malformed_file, {experts_path, "target"});
  made_.members["target_parameters"] = R"(["experts.gate_up_proj", "experts.up_proj"])";
  expect(errc::shape_mismatch, {experts_path});
}

TEST_F(merge_refusals, numbers_that_are_not_finite) {
  adapter_builder const good = made_;
  for (float const number :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    made_ = good;
    std::memcpy(made_.b(query).bytes.data() + 40, &number, 4);
    expect(errc::invalid_argument, {query, "lora_B", "not finite"});
  }
}

TEST_F(merge_refusals, tensors_that_are_no_factors) {
  adapter_builder const good = made_;
  tensor_bytes const factor = made_.a(query);
  for (auto const& [name, why] :
       {std::pair{"base_model.model.lm_head.weight", "no factor"},
        {"base_model.model.model.embed_tokens.lora_embedding_A", "embedding"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight", "DoRA"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias", "bias"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight", "not named"},
        {"base_model.model.model.layers.0.self_attn.q_proj.hada_w1_a", "LoHa"}}) {
    made_ = good;
    made_.tensors[name] = factor;
    expect(errc::unsupported, {name, why});
  }
  made_ = good;
  made_.tensors.erase(adapter_builder::name(query, "B"));
  expect(errc::malformed_file, {query, "without lora_B"});
  made_ = good;
  made_.a(query).type = file_dtype::i32;
  expect(errc::dtype_mismatch, {query, "I32"});
  made_ = good;
  made_.a(query).shape = {4, hidden, 1};
  expect(errc::shape_mismatch, {query, "matrix"});
  made_.tensors.clear();
  expect(errc::malformed_file, {"no factor"});
}

TEST_F(merge_refusals, files_that_are_missing) {
  made_.write(adapter_);
  std::filesystem::remove(adapter_.path() / "adapter_model.safetensors");
  adapter_.write("adapter_model.bin", "pickled");
  EXPECT_MOE64_ERROR(check_adapter(*reader_, adapter_.path().string()), errc::io_failure,
                     "adapter_model.safetensors", "adapter_model.bin");
  std::filesystem::remove(adapter_.path() / "adapter_config.json");
  EXPECT_MOE64_ERROR(check_adapter(*reader_, adapter_.path().string()), errc::io_failure,
                     "adapter_config.json");
  EXPECT_MOE64_ERROR(check_adapter(*reader_, adapter_.file("nothing")), errc::io_failure,
                     "nothing");
}

TEST_F(merge_refusals, a_head_that_the_config_ties_to_the_embedding) {
  builder_.config(case_config(R"("model_type": "deepseek_v3", "tie_word_embeddings": true,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})"));
  write_checkpoint(base_, builder_, plausible_tensors(builder_), 1);
  reader_.emplace(base_.path().string());
  made_.add("lm_head", 4, hidden, 10);
  expect(errc::unsupported, {"lm_head", "ties"});
}

TEST_F(merge_refusals, outputs_and_targets) {
  made_.write(adapter_);
  merge_options options;
  options.to = convert_target::f16;
  EXPECT_MOE64_ERROR(
      merge(*reader_, adapter_.path().string(), out_.file("out"), options, cpu_stream()),
      errc::invalid_argument, "f16", "bf16, fp8-block, fp8-row or same");
  options.to = convert_target::same;
  EXPECT_MOE64_ERROR(
      merge(*reader_, adapter_.path().string(), base_.path().string(), options, cpu_stream()),
      errc::invalid_argument, "[merge]", "is the input");
  EXPECT_MOE64_ERROR(
      merge(*reader_, adapter_.path().string(), adapter_.path().string(), options, cpu_stream()),
      errc::invalid_argument, "not empty");
  options.memory_bytes = 1000;
  EXPECT_MOE64_ERROR(
      merge(*reader_, adapter_.path().string(), out_.file("out"), options, cpu_stream()),
      errc::out_of_memory, "[merge] 1000 bytes");
}

TEST(adapter_paths, names_of_factors) {
  using checkpoint::match_adapter_key;
  auto const key =
      match_adapter_key("base_model.model.a.experts.base_layer.base_layer.lora_B.weight");
  ASSERT_TRUE(key);
  EXPECT_EQ(key->path, "a.experts");
  EXPECT_EQ(key->inner, 2);
  EXPECT_TRUE(key->is_b);
  for (char const* const other :
       {"", "base_model.model.lora_A.weight", "base_model.model..lora_A", "a.lora_A.weight",
        "base_model.model.base_layer.lora_A.bias", "base_model.model.a.lora_A.b.lora_A.weight"}) {
    EXPECT_FALSE(match_adapter_key(other)) << other;
  }
}

TEST(adapter_paths, names_of_experts) {
  using checkpoint::match_experts_path;
  auto const stack = match_experts_path("model.language_model.layers.12.mlp.experts");
  ASSERT_TRUE(stack);
  EXPECT_EQ(stack->prefix, "model.language_model.");
  EXPECT_EQ(stack->layer, 12);
  EXPECT_EQ(stack->expert, -1);
  auto const one = match_experts_path("model.layers.3.block_sparse_moe.experts.7.w3");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->expert, 7);
  EXPECT_EQ(one->projection, projection_kind::up);
  for (char const* const other :
       {"model.layers.3.mlp.shared_experts", "model.layers.03.mlp.experts", "layers.x.mlp.experts",
        "model.layers.3.mlp.experts.gate_proj", "model.layers.3.mlp.experts.1.bias",
        "model.layers.3.a.b.experts", "experts", "mylayers.3.mlp.experts"}) {
    EXPECT_FALSE(match_experts_path(other)) << other;
  }
}

}  // namespace
}  // namespace moe64::test
