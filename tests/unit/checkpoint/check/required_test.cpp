// What a model's architecture must have is missed: every tensor beside the routed experts of every
// family that synth makes, one by one.
#include "checkpoint/check/findings.hpp"
#include "checkpoint/load/opened.hpp"
#include "moe64/error.hpp"
#include "support/edited_checkpoint.hpp"
#include "support/stored_checkpoint.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>

namespace moe64::test {
namespace {

synth_options small(std::string const& like) {
  synth_options options;
  options.like = like;
  options.scale_down = 64;
  options.layers = 5;
  return options;
}

bool holds_any(std::string const& name, std::vector<std::string> const& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string const& part) { return name.find(part) != std::string::npos; });
}

/// "model.layers.*.input_layernorm.weight".
std::string across_layers(std::string const& name) {
  auto const at = name.find("layers.");
  if (at == std::string::npos) return name;
  auto const end = name.find('.', at + 7);
  return name.substr(0, at + 7) + "*" + name.substr(end);
}

/// One of each name beside the experts, of the last layer that has it.
std::vector<std::string> last_of_each(std::vector<std::string> const& names) {
  std::vector<std::string> const experts = {".experts.",
                                            ".moe.gate_proj",
                                            ".moe.up_proj",
                                            ".moe.down_proj",
                                            "block_sparse_moe.input_linear",
                                            "block_sparse_moe.output_linear"};
  std::map<std::string, std::string> last;
  for (std::string const& name : names) {
    if (holds_any(name, experts) || name.starts_with("mtp.")) continue;
    last[across_layers(name)] = name;  // fewer than ten layers: in order of their numbers
  }
  std::vector<std::string> result;
  for (auto const& [pattern, name] : last) result.push_back(name);
  return result;
}

/// What the files of a family have, and what is not asked for.
std::vector<std::string> optional_parts(std::string const& like) {
  // releases differ in the names and the kind of attention
  if (like == "ling-v3") return {"self_attn.q_a_", "self_attn.q_b_", "self_attn.kv_"};
  if (like == "mistral-large-3-hf") return {"e_score_correction_bias"};  // Transformers has none
  return {};
}

std::string test_name(testing::TestParamInfo<synth_model> const& entry) {
  std::string name = entry.param.like;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

class every_required_tensor : public testing::TestWithParam<synth_model> {};

TEST_P(every_required_tensor, is_missed) {
  std::string const& like = GetParam().like;
  edited_checkpoint made(small(like));
  index_t looked_at = 0;
  for (std::string const& name : last_of_each(made.names())) {
    if (holds_any(name, optional_parts(like))) continue;
    ++looked_at;
    std::string const known = fmt::format("\"{}\"", name);
    std::string const unknown = fmt::format("\"x{}\"", name.substr(1));
    made.rename(known, unknown);
    checkpoint_reader const reader(made.path());
    EXPECT_FALSE(checkpoint::missing_tensors(reader.internals()).empty()) << name;
    made.rename(unknown, known);
  }
  EXPECT_GE(looked_at, 8);
  checkpoint_reader const whole(made.path());
  EXPECT_TRUE(checkpoint::missing_tensors(whole.internals()).empty());
}

INSTANTIATE_TEST_SUITE_P(check_required, every_required_tensor, testing::ValuesIn(synth_models()),
                         test_name);

class every_fault_of_names : public testing::TestWithParam<synth_model> {};

/// What is planted is found in every family that can have it, or refused.
TEST_P(every_fault_of_names, is_found_or_refused) {
  for (std::string const kind : {"missing-embeddings", "missing-router", "missing-attention",
                                 "missing-shared-expert", "wrong-block-size"}) {
    synth_options options = small(GetParam().like);
    options.fault = kind;
    std::optional<edited_checkpoint> made;
    try {
      made.emplace(options);
    } catch (error const& refused) {
      EXPECT_EQ(refused.code(), errc::invalid_argument) << refused.what();
      continue;
    }
    EXPECT_FALSE(made->check().ok()) << kind;
  }
}

INSTANTIATE_TEST_SUITE_P(check_required, every_fault_of_names, testing::ValuesIn(synth_models()),
                         test_name);

TEST(check_required, a_router_has_a_row_for_each_expert) {
  edited_checkpoint made(small("deepseek-v3"));
  std::string const router = R"("model.layers.3.mlp.gate.weight":{"dtype":"BF16","shape":)";
  made.rename(router + "[4,128]", router + "[128,4]");
  check_report const report = made.check();
  ASSERT_EQ(report.findings.size(), 1U) << texts_of(report);
  EXPECT_EQ(report.findings[0].rule, "router-shape");
  EXPECT_EQ(report.findings[0].level, finding_level::error);
  EXPECT_EQ(report.findings[0].text,
            "tensor 'model.layers.3.mlp.gate.weight' [128, 4] is the router of layer 3, which has "
            "4 experts: expected a row for each of them");
}

TEST(check_required, layers_that_share_an_indexer_need_none) {
  for (std::string const shared : {R"("indexer_types": ["full", "full", "full", "shared", "full"])",
                                   R"("index_topk_pattern": "FFFSF")",
                                   R"("index_topk_freq": 2, "index_skip_topk_offset": 3)"}) {
    edited_checkpoint made(small("glm-5.2"));
    made.rename("layers.3.self_attn.indexer", "layers.3.self_attn.xndexer");
    checkpoint_reader const without(made.path());
    EXPECT_EQ(checkpoint::missing_tensors(without.internals()).size(), 5U);
    made.configure("\"rope_theta\"", shared + ", \"rope_theta\"");
    checkpoint_reader const reader(made.path());
    EXPECT_TRUE(checkpoint::missing_tensors(reader.internals()).empty()) << shared;
  }
}

}  // namespace
}  // namespace moe64::test
