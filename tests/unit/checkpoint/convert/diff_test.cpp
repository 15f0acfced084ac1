#include "moe64/diff.hpp"

#include "moe64/convert.hpp"
#include "moe64/cpu.hpp"
#include "support/defined_checkpoint.hpp"
#include "support/error_matcher.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace moe64::test {
namespace {

dialect_case const& case_named(std::string const& id) {
  for (dialect_case const& c : dialect_cases()) {
    if (c.id == id) return c;
  }
  throw std::invalid_argument(id);
}

diff_report compare(std::string const& a, std::string const& b, diff_options const& options = {}) {
  checkpoint_reader const first(a);
  checkpoint_reader const second(b);
  cpu_pool pool(3);
  return diff(first, second, options, cpu_stream(&pool));
}

index_t count(diff_report const& report, diff_state state) {
  return report.counts[static_cast<std::size_t>(state)];
}

class diff_dialect : public ::testing::TestWithParam<dialect_case> {};

TEST_P(diff_dialect, a_conversion_to_bf16_is_as_close_as_its_rounding) {
  dialect_case const& c = GetParam();
  checkpoint_builder const builder = c.build();
  temp_folder const source;
  temp_folder const parent;
  tensor_map const in = plausible_tensors(builder);
  write_checkpoint(source, builder, in);
  checkpoint_reader const reader(source.path().string());
  static_cast<void>(convert(reader, parent.file("out"), {}, cpu_stream()));
  std::string const from = source.path().string();
  EXPECT_TRUE(compare(from, from).same);
  EXPECT_EQ(count(compare(from, from), diff_state::identical),
            static_cast<index_t>(compare(from, from).counts[0]));
  diff_report const close = compare(from, parent.file("out"), {0x1p-8, false});
  EXPECT_TRUE(close.same) << c.id;
  EXPECT_EQ(count(close, diff_state::different), 0);
  EXPECT_EQ(count(close, diff_state::equal) + count(close, diff_state::close),
            3 * case_extents::experts);
  EXPECT_LE(close.max_rel, 0x1p-8);
  EXPECT_EQ(close.numbers, 3 * case_extents::experts * case_extents::hidden * case_extents::inter);
  // the definition's own distance, counted in plain loops
  index_t different = 0;
  double largest = 0;
  for (projection_kind const projection :
       {projection_kind::gate, projection_kind::up, projection_kind::down}) {
    for (index_t expert = 0; expert < case_extents::experts; ++expert) {
      defined_matrix const numbers(c, in, projection, expert);
      for (index_t row = 0; row < numbers.rows(); ++row) {
        for (index_t col = 0; col < numbers.cols(); ++col) {
          float const exact = numbers(row, col);
          std::uint32_t const word = static_cast<std::uint32_t>(to_bf16(exact)) << 16;
          float rounded = 0;
          std::memcpy(&rounded, &word, 4);
          different += exact == rounded ? 0 : 1;
          largest = std::max(largest,
                             std::fabs(static_cast<double>(exact) - static_cast<double>(rounded)));
        }
      }
    }
  }
  EXPECT_EQ(close.different, different);
  EXPECT_EQ(close.max_abs, largest);
}

INSTANTIATE_TEST_SUITE_P(every, diff_dialect, ::testing::ValuesIn(dialect_cases()),
                         [](auto const& drawn) {
                           return drawn.param.id + "_" + std::to_string(drawn.index);
                         });

TEST(diff, one_changed_code_is_found_and_named) {
  temp_folder const a;
  temp_folder const b;
  checkpoint_builder const builder = case_named("D14").build();
  tensor_map tensors = plausible_tensors(builder);
  write_checkpoint(a, builder, tensors);
  tensors.at("model.layers.0.mlp.experts.gate_up_proj_blocks").bytes[5] ^= std::byte{0x40};
  write_checkpoint(b, builder, tensors, 2);
  diff_report const report = compare(a.path().string(), b.path().string());
  EXPECT_FALSE(report.same);
  EXPECT_EQ(report.different, 1);
  ASSERT_EQ(report.tensors.size(), 1U);
  EXPECT_EQ(report.tensors[0].tensor, "model.layers.0.mlp.experts.gate_up_proj_blocks[0].gate");
  EXPECT_EQ(report.tensors[0].state, diff_state::different);
  EXPECT_GT(report.max_abs, 0.0);
}

TEST(diff, tensors_of_one_side_are_told) {
  temp_folder const a;
  temp_folder const b;
  checkpoint_builder builder = case_named("D1").build();
  builder.add("model.norm.weight", file_dtype::bf16, {320});
  tensor_map tensors = plausible_tensors(builder);
  write_checkpoint(a, builder, tensors);
  tensors.erase("model.norm.weight");
  tensors["model.other.weight"] = {file_dtype::f32, {2}, std::vector<std::byte>(8)};
  write_checkpoint(b, builder, tensors);
  diff_report const report = compare(a.path().string(), b.path().string(), {1.0, false});
  EXPECT_FALSE(report.same);
  EXPECT_EQ(count(report, diff_state::only_first), 1);
  EXPECT_EQ(count(report, diff_state::only_second), 1);
  EXPECT_EQ(report.tensors.size(), 2U);
}

TEST(diff, equal_numbers_that_are_stored_differently_differ_only_bitwise) {
  temp_folder const a;
  temp_folder const b;
  checkpoint_builder builder = case_named("D1").build();
  builder.add("model.norm.weight", file_dtype::bf16, {320});
  tensor_map tensors = plausible_tensors(builder);
  write_checkpoint(a, builder, tensors);
  tensor_bytes wide{file_dtype::f32, {320}, std::vector<std::byte>(1280)};
  for (index_t i = 0; i < 320; ++i) {
    float const number = stored_number(tensors.at("model.norm.weight"), i);
    std::memcpy(wide.bytes.data() + 4 * i, &number, 4);
  }
  tensors["model.norm.weight"] = wide;
  write_checkpoint(b, builder, tensors);
  EXPECT_TRUE(compare(a.path().string(), b.path().string()).same);
  EXPECT_FALSE(compare(a.path().string(), b.path().string(), {0.0, true}).same);
}

TEST(diff, a_nan_beside_a_number_is_never_close) {
  temp_folder const a;
  temp_folder const b;
  checkpoint_builder const builder = case_named("D1").build();
  tensor_map tensors = plausible_tensors(builder);
  write_checkpoint(a, builder, tensors);
  tensors.at("model.layers.0.mlp.experts.2.down_proj.weight").bytes[9] = std::byte{0x7f};
  write_checkpoint(b, builder, tensors);
  diff_report const report = compare(a.path().string(), b.path().string(), {1e9, false});
  EXPECT_FALSE(report.same);
  EXPECT_EQ(report.max_abs, HUGE_VAL);
  EXPECT_MOE64_ERROR(compare(a.path().string(), b.path().string(), {-1.0, false}),
                     errc::invalid_argument, "tolerance");
}

}  // namespace
}  // namespace moe64::test
