// Each test is named after a way in which checkpoints are silently misread, and shows what a check
// of the values makes of it.
#include "support/stored_checkpoint.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace moe64::test {
namespace {

using testing::HasSubstr;
using enum file_dtype;

dialect_case const& case_of(std::string_view id) {
  for (dialect_case const& entry : dialect_cases()) {
    if (entry.id == id) return entry;
  }
  throw std::invalid_argument("no such case");
}

std::string const fp8_block =
    R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})";
std::string const fp8_channel =
    R"("quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",)"
    R"( "ignore": ["re:.*layers\\.0\\..*"], "config_groups": {"group_0": {"targets":)"
    R"( ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})";

std::string const prefix = "model.layers.0.mlp.experts.";

/// Rows [first, last) of a matrix of bytes.
void fill_rows(std::vector<std::byte>& bytes, index_t cols, index_t first, index_t last,
               std::byte code) {
  std::fill(bytes.begin() + first * cols, bytes.begin() + last * cols, code);
}

index_t errors_of(check_report const& report) { return report.count(finding_level::error); }

TEST(check_trap, tile_size_is_not_dimension_divided_by_grid) {
  // 192 rows in two blocks of 128, not of 96: the second block begins at row 128
  stored_checkpoint stored(case_of("D1").build());
  std::string const up = prefix + "0.up_proj";
  for (index_t col = 0; col < 3; ++col) stored.set_number(up + ".weight_scale_inv", 3 + col, 0.0);
  fill_rows(stored.bytes(up + ".weight"), 320, 96, 128, std::byte{0x38});
  fill_rows(stored.bytes(up + ".weight"), 320, 128, 192, std::byte{0x00});
  check_report const right = stored.check();
  EXPECT_EQ(errors_of(right), 0) << texts_of(right);
  fill_rows(stored.bytes(up + ".weight"), 320, 96, 128, std::byte{0x00});
  fill_rows(stored.bytes(up + ".weight"), 320, 191, 192, std::byte{0x01});
  check_report const wrong = stored.check();
  EXPECT_EQ(count_of(wrong, "zero-scale"), 1) << texts_of(wrong);
  EXPECT_THAT(texts_of(wrong), HasSubstr("3 of 6 scales"));
}

/// Scales of all tensors whose name ends so.
void fill_all(stored_checkpoint& stored, std::string_view suffix, double value) {
  for (std::string const& name : stored.described().names()) {
    if (name.ends_with(suffix)) stored.fill_number(name, value);
  }
}

TEST(check_trap, reciprocal_of_weight_scale_inv) {
  stored_checkpoint stored(case_of("D1").build());
  fill_all(stored, "weight_scale_inv", 448.0 / 0.11);
  check_report const report = stored.check();
  EXPECT_EQ(errors_of(report), 4) << texts_of(report);
  EXPECT_EQ(count_of(report, "weight-size"), 3) << texts_of(report);
  EXPECT_EQ(count_of(report, "scale-direction"), 1) << texts_of(report);
  EXPECT_THAT(texts_of(report), HasSubstr("scales look like quantisation factors"));
}

TEST(check_trap, u8_exponent_used_as_a_number) {
  // as exponents they are small numbers ...
  stored_checkpoint exponents(case_of("D12").build());
  EXPECT_TRUE(exponents.check().ok());
  // ... written out as numbers they are large ones
  stored_checkpoint numbers(case_of("D8").build());
  fill_all(numbers, "weight_scale_inv", 116.0);
  check_report const report = numbers.check();
  EXPECT_EQ(errors_of(report), 4) << texts_of(report);
  EXPECT_EQ(count_of(report, "weight-size"), 3) << texts_of(report);
  EXPECT_EQ(count_of(report, "scale-direction"), 1) << texts_of(report);
}

TEST(check_trap, nvfp4_global_scale_direction) {
  stored_checkpoint multiplies(case_of("D23").build());
  EXPECT_TRUE(multiplies.check().ok());
  fill_all(multiplies, "weight_scale_2", 2688.0 / 0.5);  // meant to divide
  EXPECT_EQ(count_of(multiplies.check(), "scale-direction"), 1);
  stored_checkpoint divides(case_of("D24").build());
  EXPECT_TRUE(divides.check().ok());
  fill_all(divides, "weight_global_scale", 0.5 / 2688.0);  // meant to multiply
  EXPECT_EQ(count_of(divides.check(), "scale-direction"), 1);
}

TEST(check_trap, one_dimensional_scale_of_a_square_matrix_belongs_to_rows) {
  checkpoint_builder described;
  described.config(case_config(R"("model_type": "x", )" + fp8_channel, 2, 64, 64, 1));
  expert_tensors tensors;
  tensors.prefix = "model.layers.1.mlp.experts.";
  tensors.scales = ".weight_scale";
  tensors.scale_shape = [](index_t rows, index_t) { return std::vector<index_t>{rows}; };
  add_experts(described, tensors, 1, 64, 64);
  tensors.prefix = prefix;
  tensors.scales.clear();
  tensors.value_type = bf16;
  add_experts(described, tensors, 1, 64, 64);
  stored_checkpoint stored(std::move(described));
  std::string const gate = "model.layers.1.mlp.experts.0.gate_proj";
  stored.set_number(gate + ".weight_scale", 5, 0.0);
  std::ranges::fill(stored.bytes(gate + ".weight"), std::byte{0x38});
  fill_rows(stored.bytes(gate + ".weight"), 64, 5, 6, std::byte{0x00});
  check_report const right = stored.check();
  EXPECT_EQ(errors_of(right), 0) << texts_of(right);
  std::ranges::fill(stored.bytes(gate + ".weight"), std::byte{0x38});
  for (std::size_t row = 0; row < 64; ++row) {
    stored.bytes(gate + ".weight")[row * 64 + 5] = std::byte{0};
  }
  EXPECT_EQ(count_of(stored.check(), "zero-scale"), 1);
}

TEST(check_trap, scale_dropped_as_an_unexpected_key) {
  checkpoint_builder described = case_of("D1").build();
  described.remove(prefix + "2.down_proj.weight_scale_inv");
  stored_checkpoint stored(std::move(described));
  check_report const report = stored.check();
  EXPECT_EQ(count_of(report, "missing-scale"), 1) << texts_of(report);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.totals.weights_found, 9);
  EXPECT_EQ(report.totals.scales_found, 8);
  EXPECT_EQ(report.totals.matched, 8);
}

TEST(check_trap, orphan_and_duplicate_scales) {
  checkpoint_builder orphan = case_of("D1").build();
  orphan.remove(prefix + "2.down_proj.weight");
  EXPECT_GE(count_of(stored_checkpoint(std::move(orphan)).check(), "orphan-scale"), 1);
  checkpoint_builder twice = case_of("D1").build();
  twice.add(prefix + "2.down_proj.weight_scale", f32, {3, 2});
  stored_checkpoint stored(std::move(twice));
  EXPECT_EQ(count_of(stored.check(), "duplicate-scale"), 1);
  EXPECT_EQ(stored.bytes_not_read_once(), 0);
}

TEST(check_trap, first_moe_layer_in_the_ignore_list) {
  checkpoint_builder described;
  described.config(case_config(R"("model_type": "glm4_moe_lite", )" + fp8_channel, 2));
  expert_tensors tensors;
  tensors.value_type = bf16;
  add_experts(described, tensors);
  tensors.prefix = "model.layers.1.mlp.experts.";
  tensors.value_type = f8_e4m3;
  tensors.scales = ".weight_scale";
  tensors.scale_type = bf16;
  tensors.scale_shape = [](index_t rows, index_t) { return std::vector<index_t>{rows, 1}; };
  add_experts(described, tensors);
  stored_checkpoint stored(std::move(described));
  check_report const clean = stored.check();
  EXPECT_TRUE(clean.findings.empty()) << texts_of(clean);
  ASSERT_EQ(clean.layers.size(), 2U);
  EXPECT_EQ(clean.layers[0].projections[0].all.scales, 0);
  EXPECT_EQ(clean.layers[0].projections[0].all.amax, 1.0);
  EXPECT_EQ(clean.layers[1].projections[0].all.scales, 3 * 192);
  stored.set<std::uint8_t>("model.layers.1.mlp.experts.1.up_proj.weight", 4, 0x7f);
  stored.set<std::uint16_t>("model.layers.0.mlp.experts.1.up_proj.weight", 4, 0x7f80);
  check_report const report = stored.check();
  EXPECT_EQ(errors_of(report), 2) << texts_of(report);
  EXPECT_EQ(count_of(report, "nan-code"), 1);
  EXPECT_EQ(count_of(report, "non-finite-value"), 1);
}

TEST(check_trap, orientation_by_shape) {
  // square and transposed: the scale of block (in 1, out 0) covers columns 0 to 127 of rows 128 on
  checkpoint_builder described;
  described.config(
      case_config(R"("model_type": "qwen3_vl_moe", "transformers_version": "4.57.0", )" + fp8_block,
                  1, 256, 128, 1));
  described.add(prefix + "gate_up_proj", f8_e4m3, {1, 256, 256});
  described.add(prefix + "gate_up_proj_scale_inv", bf16, {1, 2, 2});
  described.add(prefix + "down_proj", f8_e4m3, {1, 128, 256});
  described.add(prefix + "down_proj_scale_inv", bf16, {1, 1, 2});
  stored_checkpoint stored(std::move(described));
  stored.set_number(prefix + "gate_up_proj_scale_inv", 2, 0.0);
  std::vector<std::byte>& codes = stored.bytes(prefix + "gate_up_proj");
  std::ranges::fill(codes, std::byte{0x38});
  for (std::size_t row = 128; row < 256; ++row)
    std::fill_n(codes.begin() + std::ssize(codes) / 256 * static_cast<index_t>(row), 128,
                std::byte{0});
  check_report const report = stored.check();
  EXPECT_EQ(errors_of(report), 0) << texts_of(report);
  EXPECT_EQ(count_of(report, "orientation-not-inferable"), 1) << texts_of(report);
  codes[200 * 256 + 100] = std::byte{1};
  EXPECT_EQ(count_of(stored.check(), "zero-scale"), 1);
}

TEST(check_trap, gate_and_up_with_different_scalars_keep_both) {
  stored_checkpoint stored(case_of("D18").build());
  std::string const expert = "model.layers.0.block_sparse_moe.experts.1.";
  stored.fill_number(expert + "w1.weight_scale", 0x1p-11);
  stored.fill_number(expert + "w3.weight_scale", 0x1p-9);
  check_report const report = stored.check();
  EXPECT_TRUE(report.ok()) << texts_of(report);
  auto const& parts = report.layers.front().projections;
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].experts[1].scale_median, 0x1p-11);
  EXPECT_EQ(parts[1].experts[1].scale_median, 0x1p-9);
}

TEST(check_trap, one_scalar_for_a_whole_stack_is_read_once) {
  stored_checkpoint stored(case_of("D17").build());
  check_report const report = stored.check(2);
  EXPECT_TRUE(report.ok()) << texts_of(report);
  EXPECT_EQ(stored.bytes_not_read_once(), 0);
  EXPECT_EQ(report.totals.scales, 2);
  for (auto const& part : report.layers.front().projections) {
    for (auto const& one : part.experts) EXPECT_EQ(one.scale_max, part.all.scale_max);
  }
}

TEST(check_trap, shared_expert_is_not_dropped) {
  checkpoint_builder described = case_of("D1").build();
  described.add("model.layers.0.mlp.shared_experts.up_proj.weight", f8_e4m3, {192, 320});
  described.add("model.layers.0.mlp.shared_experts.up_proj.weight_scale_inv", f32, {2, 3});
  stored_checkpoint stored(std::move(described));
  EXPECT_TRUE(stored.check().ok());
  EXPECT_EQ(stored.check().totals.matched, 10);
  stored.set<std::uint8_t>("model.layers.0.mlp.shared_experts.up_proj.weight", 9, 0xff);
  stored.set_number("model.layers.0.mlp.shared_experts.up_proj.weight_scale_inv", 5, NAN);
  check_report const report = stored.check();
  EXPECT_EQ(count_of(report, "nan-code"), 1) << texts_of(report);
  EXPECT_EQ(count_of(report, "non-finite-scale"), 1) << texts_of(report);
}

TEST(check_trap, scale_in_another_shard) {
  for (index_t const shards : {1, 2, 7}) {
    stored_checkpoint stored(case_of("D1").build(), shards);
    check_report const report = stored.check(2);
    EXPECT_TRUE(report.ok()) << texts_of(report);
    EXPECT_EQ(report.totals.shards, shards);
    EXPECT_EQ(stored.bytes_not_read_once(), 0);
  }
}

TEST(check_trap, expert_count_caps) {
  checkpoint_builder described;
  described.config(case_config(R"("model_type": "qwen3_moe", )" + fp8_block, 1, 16, 16, 1000));
  expert_tensors tensors;
  tensors.scales = ".weight_scale_inv";
  tensors.scale_shape = [](index_t, index_t) { return std::vector<index_t>{1, 1}; };
  add_experts(described, tensors, 1000, 16, 16);
  stored_checkpoint stored(std::move(described), 2);
  stored.set<std::uint8_t>(prefix + "999.down_proj.weight", 255, 0x7f);
  check_report const report = stored.check(2);
  EXPECT_EQ(errors_of(report), 1) << texts_of(report);
  auto const& down = report.layers.front().projections[2].experts;
  ASSERT_EQ(down.size(), 1000U);
  for (auto const& one : down) EXPECT_EQ(one.non_finite, one.expert == 999 ? 1 : 0);
}

}  // namespace
}  // namespace moe64::test
