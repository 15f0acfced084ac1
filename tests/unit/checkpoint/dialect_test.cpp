#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "checkpoint/dialect/table.hpp"
#include "support/checkpoint_builder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace moe64::test {
namespace {

class every_dialect : public testing::TestWithParam<dialect_case> {};

TEST_P(every_dialect, is_resolved_from_its_declaration) {
  dialect_case const& expected = GetParam();
  checkpoint_builder builder = expected.build();
  auto const resolved = builder.resolve();
  ASSERT_TRUE(resolved.sound()) << all_texts(resolved);
  EXPECT_EQ(resolved.found.count(finding_level::warning), 0) << all_texts(resolved);
  EXPECT_NO_THROW(require_sound(resolved));
  ASSERT_EQ(resolved.layers.size(), 1U);
  auto const& layer = resolved.layers.front();
  EXPECT_TRUE(layer.sound);
  EXPECT_EQ(layer.dialect, expected.id);
  EXPECT_THAT(resolved.dialects, testing::ElementsAre(expected.id));
  EXPECT_EQ(layer.schema, expected.schema);
  EXPECT_EQ(layer.experts, case_extents::experts);
  for (auto const* const entry : {&layer.gate, &layer.up, &layer.down}) {
    EXPECT_EQ(entry->module.values, expected.values);
    EXPECT_EQ(entry->module.scales, expected.scales);
    ASSERT_EQ(static_cast<index_t>(entry->experts.size()), case_extents::experts);
    for (auto const& source : entry->experts) {
      EXPECT_NE(source.values, nullptr);
      EXPECT_NE(source.scales, nullptr);
    }
    bool const down = entry == &layer.down;
    EXPECT_EQ(entry->format.rows, down ? case_extents::hidden : case_extents::inter);
    EXPECT_EQ(entry->format.cols, down ? case_extents::inter : case_extents::hidden);
  }
  EXPECT_EQ(to_string(layer.gate.format.layout), expected.layout);
  EXPECT_EQ(resolved.weights_found, resolved.scales_found);
  EXPECT_EQ(resolved.weights_found, resolved.matched);
  EXPECT_GT(resolved.matched, 0);
}

TEST_P(every_dialect, without_a_scale_is_an_error) {
  checkpoint_builder builder = GetParam().build();
  auto const whole = builder.resolve();
  ASSERT_EQ(whole.layers.size(), 1U);
  std::string const scale(whole.layers.front().up.experts.back().scales->name);
  std::string const values(whole.layers.front().up.experts.back().values->name);
  builder.remove(scale);
  auto const resolved = builder.resolve();
  EXPECT_GE(resolved.found.count("missing-scale"), 1) << all_texts(resolved);
  EXPECT_THAT(all_texts(resolved), testing::HasSubstr(values));
  EXPECT_FALSE(resolved.layers.front().sound);
  EXPECT_EQ(resolved.matched + 1, resolved.weights_found);
  EXPECT_THROW(require_sound(resolved), error);
}

TEST_P(every_dialect, without_a_weight_leaves_an_orphan_scale) {
  checkpoint_builder builder = GetParam().build();
  auto const whole = builder.resolve();
  ASSERT_EQ(whole.layers.size(), 1U);
  std::string const values(whole.layers.front().up.experts.back().values->name);
  builder.remove(values);
  auto const resolved = builder.resolve();
  EXPECT_GE(resolved.found.count("orphan-scale"), 1) << all_texts(resolved);
  EXPECT_FALSE(resolved.layers.front().sound);
}

TEST_P(every_dialect, without_its_declaration_is_ambiguous) {
  dialect_case undeclared = GetParam();
  // the model type and the extents stay; what declares the quantisation goes
  auto const at = undeclared.config.find(R"(, "quantization_config")");
  if (at != std::string::npos) undeclared.config.resize(at);
  undeclared.hf_quant_config.clear();
  auto const params = undeclared.params.find(R"(, "quantization")");
  if (params != std::string::npos) undeclared.params = undeclared.params.substr(0, params) + "}";
  checkpoint_builder builder = undeclared.build();
  auto const resolved = builder.resolve();
  EXPECT_GE(resolved.found.count("no-dialect"), 1) << all_texts(resolved);
  EXPECT_THAT(all_texts(resolved), testing::HasSubstr("candidates: ")) << all_texts(resolved);
  EXPECT_FALSE(resolved.sound());
}

TEST_P(every_dialect, with_a_scale_of_another_shape_is_an_error) {
  checkpoint_builder builder = GetParam().build();
  auto const whole = builder.resolve();
  ASSERT_EQ(whole.layers.size(), 1U);
  auto const& source = whole.layers.front().down.experts.front();
  std::string const scale(source.scales->name);
  std::vector<index_t> shape(source.scales->shape.begin(), source.scales->shape.end());
  if (shape.empty()) shape = {1};
  shape.back() += 1;
  builder.add(scale, source.scales->type, shape);
  auto const resolved = builder.resolve();
  EXPECT_EQ(resolved.found.count("bad-scale"), 1) << all_texts(resolved);
  EXPECT_THAT(all_texts(resolved), testing::HasSubstr(scale));
}

INSTANTIATE_TEST_SUITE_P(table, every_dialect, testing::ValuesIn(dialect_cases()),
                         [](auto const& entry) { return entry.param.id; });

TEST(dialect_table, has_a_case_for_every_row) {
  std::set<std::string> cases;
  for (dialect_case const& entry : dialect_cases()) cases.insert(entry.id);
  for (auto const& row : checkpoint::dialect_table()) {
    EXPECT_TRUE(cases.contains(std::string(row.id))) << row.id;
  }
  for (int number = 1; number <= 31; ++number) {
    std::string const id = "D" + std::to_string(number);
    EXPECT_TRUE(cases.contains(id) || cases.contains(id + "a")) << id;
  }
}

}  // namespace
}  // namespace moe64::test
