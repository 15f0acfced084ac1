// Parts of a checkpoint: which tensors a list of layers or files names.
#include "checkpoint/naming/part.hpp"

#include "support/error_matcher.hpp"

#include <gtest/gtest.h>

namespace moe64 {
namespace {

TEST(checkpoint_part, lists_are_numbers_and_ranges) {
  EXPECT_EQ(parse_ranges("3", "--layers"), (std::vector<number_range>{{3, 3}}));
  EXPECT_EQ(parse_ranges("0-5,9,2-2", "--layers"),
            (std::vector<number_range>{{0, 5}, {9, 9}, {2, 2}}));
  for (char const* const bad :
       {"", ",", "1,", "x", "5-3", "-1", "1-", "1--2", " 1", "1.5", "+1", "99999999999999999999"}) {
    EXPECT_MOE64_ERROR(parse_ranges(bad, "--layers"), errc::invalid_argument,
                       "expected numbers and ranges");
  }
  EXPECT_EQ(to_string({{{0, 5}, {9, 9}}, {{1, 1}}}), "layers 0-5,9; files 1");
  EXPECT_EQ(to_string({}), "everything");
}

TEST(checkpoint_part, the_layer_of_a_name_is_the_number_behind_its_word) {
  using checkpoint::layer_in_name;
  EXPECT_EQ(layer_in_name("model.layers.3.mlp.experts.7.up_proj.weight"), 3);
  EXPECT_EQ(layer_in_name("layers.0.ffn.gate.weight"), 0);
  EXPECT_EQ(layer_in_name("transformer.h.12.attn.weight"), 12);
  EXPECT_EQ(layer_in_name("vision.blocks.2.norm.weight"), 2);
  EXPECT_EQ(layer_in_name("model.embed_tokens.weight"), std::nullopt);
  EXPECT_EQ(layer_in_name("model.experts.3.weight"), std::nullopt);
  EXPECT_EQ(layer_in_name("model.layers.norm.3"), std::nullopt);
  EXPECT_EQ(layer_in_name(""), std::nullopt);
}

TEST(checkpoint_part, tensors_of_no_layer_are_in_no_list_of_layers) {
  checkpoint::tensor_entry one;
  one.name = "model.layers.3.norm.weight";
  one.shard = 1;
  EXPECT_TRUE(checkpoint::includes({}, one));
  EXPECT_TRUE(checkpoint::includes({{{2, 3}}, {}}, one));
  EXPECT_FALSE(checkpoint::includes({{{0, 2}}, {}}, one));
  EXPECT_TRUE(checkpoint::includes({{}, {{2, 2}}}, one));  // files are counted from 1
  EXPECT_FALSE(checkpoint::includes({{{3, 3}}, {{1, 1}}}, one));
  one.name = "lm_head.weight";
  EXPECT_FALSE(checkpoint::includes({{{0, 99}}, {}}, one));
}

}  // namespace
}  // namespace moe64
