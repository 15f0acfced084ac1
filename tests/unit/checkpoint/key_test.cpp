#include "checkpoint/naming/key_schema.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace moe64::checkpoint {
namespace {

struct key_case {
  std::string_view text;
  key_schema schema;
  tensor_part part;
  projection_kind projection;
  index_t layer;
  index_t expert;
  bool mtp = false;
};

TEST(key_schema, every_schema_is_recognised) {
  using k = key_schema;
  using p = tensor_part;
  using enum projection_kind;
  key_case const cases[] = {
      {"model.layers.3.mlp.experts.17.gate_proj.weight", k::mlp_proj, p::weight, gate, 3, 17},
      {"model.layers.3.mlp.experts.0.up_proj.weight_scale_inv", k::mlp_proj, p::weight_scale_inv,
       up, 3, 0},
      {"language_model.model.layers.0.mlp.experts.1.down_proj.weight", k::mlp_proj, p::weight, down,
       0, 1},
      {"model.language_model.layers.12.mlp.experts.1.down_proj.input_scale", k::mlp_proj,
       p::activation_scale, down, 12, 1},
      {"model.layers.3.mlp.experts.1.up_proj.weight_packed", k::mlp_proj_packed, p::weight, up, 3,
       1},
      {"model.layers.3.mlp.experts.1.up_proj.weight_shape", k::mlp_proj, p::weight_shape, up, 3, 1},
      {"model.layers.3.mlp.experts.1.up_proj.weight_scale_2", k::mlp_proj, p::weight_scale_2, up, 3,
       1},
      {"model.layers.3.mlp.experts.1.up_proj.weight_global_scale", k::mlp_proj,
       p::weight_global_scale, up, 3, 1},
      {"model.layers.3.mlp.experts.1.up_proj.weight_zero_point", k::mlp_proj, p::unknown, up, 3, 1},
      {"model.layers.1.block_sparse_moe.experts.7.w1.weight", k::block_sparse_moe_w123, p::weight,
       gate, 1, 7},
      {"language_model.model.layers.1.block_sparse_moe.experts.7.w3.weight_scale",
       k::block_sparse_moe_w123, p::weight_scale, up, 1, 7},
      {"layers.4.ffn.experts.9.w2.scale", k::ffn_w123, p::scale, down, 4, 9},
      {"mtp.0.ffn.experts.9.w2.weight", k::ffn_w123, p::weight, down, 0, 9, true},
      {"model.layers.4.mlp.experts.gate_up_proj", k::mlp_stack, p::weight, gate_up, 4, -1},
      {"model.language_model.layers.4.mlp.experts.down_proj_scale_inv", k::mlp_stack,
       p::weight_scale_inv, down, 4, -1},
      {"model.layers.4.mlp.experts.gate_up_proj_blocks", k::mlp_stack_blocks, p::weight, gate_up, 4,
       -1},
      {"model.layers.4.mlp.experts.gate_up_proj_scales", k::mlp_stack, p::scales, gate_up, 4, -1},
      {"model.layers.4.mlp.experts.down_proj_bias", k::mlp_stack, p::bias, down, 4, -1},
      {"language_model.model.layers.2.feed_forward.experts.5.gate_proj.weight",
       k::feed_forward_proj, p::weight, gate, 2, 5},
      {"language_model.model.layers.2.feed_forward.experts.down_proj_scale", k::feed_forward_stack,
       p::scale, down, 2, -1},
      {"language_model.model.layers.2.feed_forward.experts.gate_up_proj_weight_scale",
       k::feed_forward_stack, p::weight_scale, gate_up, 2, -1},
      {"model.layers.5.moe.up_proj.weight", k::moe_stack, p::weight, up, 5, -1},
      {"model.layers.5.block_sparse_moe.input_linear.weight", k::block_sparse_moe_stack, p::weight,
       gate_up, 5, -1},
      {"model.layers.5.block_sparse_moe.output_linear.weight_scale", k::block_sparse_moe_stack,
       p::weight_scale, down, 5, -1},
      {"layers.6.experts.2.w1.qscale_weight", k::experts_w123, p::qscale_weight, gate, 6, 2},
      {"layers.6.experts.2.w1.qscale_act", k::experts_w123, p::activation_scale, gate, 6, 2},
      {"mtp.layers.0.mlp.experts.2.gate_proj.weight", k::mtp_mlp_proj, p::weight, gate, 0, 2, true},
      {"model.layers.2.feed_forward.experts.5.gate_proj.weight", k::feed_forward_proj, p::weight,
       gate, 2, 5},
      {"model.layers.2.feed_forward.experts.5.w3.weight_scale", k::feed_forward_w123,
       p::weight_scale, up, 2, 5},
      {"backbone.layers.2.mixer.experts.5.up_proj.weight", k::mixer_proj, p::weight, up, 2, 5},
      {"model.layers.2.mixer.experts.5.down_proj.weight_scale", k::mixer_proj, p::weight_scale,
       down, 2, 5},
      {"language_model.backbone.layers.2.mixer.experts.5.up_proj.weight", k::mixer_proj, p::weight,
       up, 2, 5},
      {"mtp.layers.0.mixer.experts.5.up_proj.weight", k::mixer_proj, p::weight, up, 0, 5, true},
      {"model.llm.layers.2.mlp.experts.w13_weight", k::mlp_stack_w13, p::weight, gate_up, 2, -1},
      {"model.llm.layers.2.mlp.experts.w2_weight_scale", k::mlp_stack_w13, p::scale, down, 2, -1},
  };
  for (key_case const& expected : cases) {
    auto const key = match_key(expected.text);
    ASSERT_TRUE(key.has_value()) << expected.text;
    EXPECT_EQ(key->schema, expected.schema) << expected.text;
    EXPECT_EQ(key->part, expected.part) << expected.text;
    EXPECT_EQ(key->projection, expected.projection) << expected.text;
    EXPECT_EQ(key->layer, expected.layer) << expected.text;
    EXPECT_EQ(key->expert, expected.expert) << expected.text;
    EXPECT_EQ(key->mtp, expected.mtp) << expected.text;
    EXPECT_TRUE(expected.text.starts_with(key->module));
  }
}

TEST(key_schema, modules_are_what_skip_lists_name) {
  EXPECT_EQ(match_key("model.layers.3.mlp.experts.1.up_proj.weight")->module,
            "model.layers.3.mlp.experts.1.up_proj");
  EXPECT_EQ(match_key("model.layers.3.mlp.experts.down_proj_scale_inv")->module,
            "model.layers.3.mlp.experts.down_proj");
}

TEST(key_schema, other_names_are_not_experts) {
  for (std::string_view const text : {
           "",
           "model.layers.3.mlp.gate.weight",
           "model.layers.3.mlp.shared_experts.up_proj.weight",
           "model.layers.3.mlp.up_proj.weight",
           "model.layers.03.mlp.experts.1.up_proj.weight",
           "model.layers.3.mlp.experts.01.up_proj.weight",
           "model.layers.3.mlp.experts.1234567890.up_proj.weight",
           "model.layers.-3.mlp.experts.1.up_proj.weight",
           "model.layers..mlp.experts.1.up_proj.weight",
           "model.layers.3.mlp.experts.1.up_proj",
           "model.layers.3.mlp.experts.1.up_projx.weight",
           "model.layers.3.mlp.experts.gate_up_projx",
           "model.layers.3.mlp.experts.gate_up_proj.weight",
           "xmodel.layers.3.mlp.experts.1.up_proj.weight",
           "layers.3.mlp.experts.1.up_proj.weight",
           "mtp.layers.0.mlp.experts.gate_up_proj",
           "mtp.0.experts.1.w1.weight",
           "model.layers.2.feed_forward.experts.gate_up_proj",
           "model.layers.2.feed_forward.experts.5.w4.weight",
           "backbone.layers.2.mixer.experts.5.gate_proj.weight",
           "backbone.layers.2.mlp.experts.w1_weight",
           "model.llm.layers.2.mlp.experts.w13_weight_blocks",
           "model.llm.layers.2.mlp.experts.w13_weightx",
           "model.llm.layers.2.mlp.experts.shared_w13_weight",
           "model.llm.layers.2.moe.up_proj.weight",
           "model.language_model.layers.2.block_sparse_moe.experts.5.w1.weight",
           "model.layers.3.block_sparse_moe.experts.5.w1.weight_packed",
           "layers.3.ffn.experts.5.w4.weight",
       }) {
    EXPECT_FALSE(match_key(text).has_value()) << text;
  }
}

TEST(key_schema, every_cut_of_a_name_is_read_without_harm) {
  std::string const text =
      "language_model.model.layers.12.feed_forward.experts.34.down_proj.weight";
  for (std::size_t length = 0; length < text.size(); ++length) {
    auto const key = match_key(std::string_view(text).substr(0, length));
    if (key) {
      EXPECT_EQ(key->part, tensor_part::unknown) << length;
    }
  }
}

TEST(key_schema, dense_modules_are_split_at_the_last_dot) {
  EXPECT_EQ(match_dense_key("model.layers.0.self_attn.q_proj.weight_scale_inv").module,
            "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(match_dense_key("a.b.weight_packed").part, tensor_part::weight);
  EXPECT_TRUE(match_dense_key("a.b.weight_packed").packed);
  EXPECT_EQ(match_dense_key("a.b.c").part, tensor_part::unknown);
  EXPECT_EQ(match_dense_key("weight").part, tensor_part::unknown);
}

TEST(key_schema, a_million_names_take_less_than_a_second) {
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) {
    names.push_back(
        fmt::format("model.layers.{}.mlp.experts.{}.down_proj.weight_scale_inv", i % 90, i));
  }
  auto const begin = std::chrono::steady_clock::now();
  index_t sum = 0;
  for (int round = 0; round < 1000; ++round) {
    for (std::string const& text : names) sum += match_key(text)->expert;
  }
  std::chrono::duration<double> const seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(sum, 1000 * (999 * 1000 / 2));
  EXPECT_LT(seconds.count(),
            10.0);  // measured: 0.1 s; the rest is for sanitizers and busy machines
}

}  // namespace
}  // namespace moe64::checkpoint
