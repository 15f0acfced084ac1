// Each test is named after a way in which checkpoints are silently misread.
#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "moe64/index.hpp"
#include "oracle/oracle.hpp"
#include "support/checkpoint_builder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moe64::test {
namespace {

using checkpoint::scale_codec;
using testing::HasSubstr;
using enum file_dtype;

std::string const fp8_block =
    R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})";
std::string const fp8_channel =
    R"("quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",)"
    R"( "ignore": ["re:.*layers\\.(0|2)\\..*", "lm_head"], "config_groups": {"group_0": {"targets":)"
    R"( ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})";

std::vector<index_t> blocks(index_t rows, index_t cols) {
  return {ceil_div(rows, 128), ceil_div(cols, 128)};
}

expert_tensors block_tensors(file_dtype scale_type = bf16) {
  expert_tensors tensors;
  tensors.scales = ".weight_scale_inv";
  tensors.scale_type = scale_type;
  tensors.scale_shape = blocks;
  return tensors;
}

dialect_case const& case_of(std::string_view id) {
  for (dialect_case const& entry : dialect_cases()) {
    if (entry.id == id) return entry;
  }
  throw std::invalid_argument("no such case");
}

/// The number that one code and one scale byte pattern stand for, through the format of `entry`.
double number_of(checkpoint::projection_entry const& entry, std::uint8_t code,
                 std::vector<std::byte> scale, float global = 1.0F) {
  std::vector<std::byte> values(static_cast<std::size_t>(value_slice_bytes(entry.format)),
                                static_cast<std::byte>(code));
  std::vector<std::byte> scales;
  while (static_cast<index_t>(scales.size()) < scale_slice_bytes(entry.format)) {
    scales.insert(scales.end(), scale.begin(), scale.end());
  }
  auto const view = make_view(entry.format, {values.data(), scales.data(), &global, 1, {}});
  return oracle::at(view, 0, 1, 3);
}

TEST(checkpoint_trap, tile_size_is_not_dimension_divided_by_grid) {
  for (index_t const inter : {160, 192, 224, 288, 416, 448, 480, 672, 928, 960, 992, 1440}) {
    checkpoint_builder builder;
    builder.config(case_config(R"("model_type": "qwen3_moe", )" + fp8_block, 1, 128, inter, 1));
    add_experts(builder, block_tensors(), 1, 128, inter);
    auto const resolved = builder.resolve();
    ASSERT_TRUE(resolved.sound()) << all_texts(resolved);
    auto const& up = resolved.layers.front().up.format;
    EXPECT_EQ(up.layout, granularity::block(128, 128)) << inter;
    EXPECT_EQ(up.layout.grid_rows(inter), ceil_div(inter, 128));
  }
}

TEST(checkpoint_trap, undeclared_block_size_is_never_inferred_from_the_grid) {
  checkpoint_builder builder;
  builder.config(
      case_config(R"("model_type": "x", "quantization_config": {"quant_method": "fp8"})"));
  add_experts(builder, block_tensors());
  auto const resolved = builder.resolve();
  EXPECT_GE(resolved.found.count("bad-scale"), 1);
  EXPECT_THAT(all_texts(resolved), HasSubstr("blk 128x128, which only an assumption can state"));
  auto const unstated = builder.resolve({"scale=block"});
  EXPECT_THAT(all_texts(unstated), HasSubstr("state it with block=ROWSxCOLS"));
  auto const assumed = builder.resolve({"scale=block", "block=128x128"});
  EXPECT_TRUE(assumed.sound()) << all_texts(assumed);
  EXPECT_THAT(assumed.assumed, testing::ElementsAre("scale=block", "block=128x128"));
  EXPECT_EQ(assumed.layers.front().gate.format.layout, granularity::block(128, 128));
}

TEST(checkpoint_trap, weight_scale_inv_is_not_a_reciprocal) {
  checkpoint_builder builder = case_of("D1").build();
  auto const resolved = builder.resolve();
  // 0x38 is 1.0; 0.25 little-endian
  std::vector<std::byte> const quarter = {std::byte{0}, std::byte{0}, std::byte{0x80},
                                          std::byte{0x3e}};
  EXPECT_EQ(number_of(resolved.layers.front().gate, 0x38, quarter), 0.25);
}

TEST(checkpoint_trap, u8_exponent_is_not_a_number) {
  checkpoint_builder builder = case_of("D12").build();
  auto const resolved = builder.resolve();
  EXPECT_EQ(number_of(resolved.layers.front().gate, 0x38, {std::byte{120}}), 0x1p-7);
}

TEST(checkpoint_trap, nvfp4_global_scale_direction) {
  // nibbles 0x2 are 1.0, the block scale 0x38 is 1.0
  for (auto const& [id, expected] : {std::pair{"D23", 4.0}, std::pair{"D24", 0.25}}) {
    checkpoint_builder builder = case_of(id).build();
    auto const resolved = builder.resolve();
    EXPECT_EQ(number_of(resolved.layers.front().gate, 0x22, {std::byte{0x38}}, 4.0F), expected)
        << id;
  }
  // the global scale of the other dialect is refused, not reinterpreted
  checkpoint_builder builder = case_of("D23").build();
  std::string const module = "model.layers.0.mlp.experts.0.up_proj";
  builder.remove(module + ".weight_scale_2").add(module + ".weight_global_scale", f32, {1});
  auto const resolved = builder.resolve();
  EXPECT_THAT(all_texts(resolved), HasSubstr("has no global scale 'weight_scale_2'"));
  EXPECT_FALSE(resolved.sound());
}

TEST(checkpoint_trap, one_dimensional_scale_of_a_square_matrix_belongs_to_rows) {
  checkpoint_builder builder;
  builder.config(case_config(R"("model_type": "x", )" + fp8_channel, 1, 64, 64, 1));
  expert_tensors tensors;
  tensors.scales = ".weight_scale";
  tensors.scale_type = f32;
  tensors.scale_shape = [](index_t rows, index_t) { return std::vector<index_t>{rows}; };
  add_experts(builder, tensors, 1, 64, 64);
  auto const resolved = builder.resolve();
  ASSERT_TRUE(resolved.sound()) << all_texts(resolved);
  auto const& gate = resolved.layers.front().gate.format;
  EXPECT_EQ(gate.layout, granularity::row());
  EXPECT_EQ(gate.scales.row_stride, 1);
  // [1, N] would be one scale per column
  builder.add("model.layers.0.mlp.experts.0.up_proj.weight_scale", f32, {1, 64});
  EXPECT_EQ(builder.resolve().found.count("bad-scale"), 1);
}

TEST(checkpoint_trap, first_moe_layer_in_the_ignore_list) {
  checkpoint_builder builder;
  builder.config(case_config(R"("model_type": "glm4_moe_lite", )" + fp8_channel, 4));
  for (index_t layer = 0; layer < 4; ++layer) {
    expert_tensors tensors;
    tensors.prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    if (layer % 2 == 0) {
      tensors.value_type = bf16;
    } else {
      tensors.scales = ".weight_scale";
      tensors.scale_type = bf16;
      tensors.scale_shape = [](index_t rows, index_t) { return std::vector<index_t>{rows, 1}; };
    }
    add_experts(builder, tensors);
  }
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  EXPECT_EQ(resolved.found.count("unquantised"), 0) << all_texts(resolved);
  ASSERT_EQ(resolved.layers.size(), 4U);
  EXPECT_EQ(resolved.layers[0].dialect, "plain");
  EXPECT_EQ(resolved.layers[1].dialect, "D6");
  EXPECT_EQ(resolved.layers[2].dialect, "plain");
  EXPECT_THAT(resolved.dialects, testing::ElementsAre("plain", "D6"));
}

TEST(checkpoint_trap, plain_layer_that_no_list_excepts_is_told) {
  checkpoint_builder builder;
  builder.config(case_config(R"("model_type": "qwen3_moe", )" + fp8_block));
  expert_tensors tensors;
  tensors.value_type = bf16;
  add_experts(builder, tensors);
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  EXPECT_EQ(resolved.found.count("unquantised"), 9);
}

TEST(checkpoint_trap, orientation_is_never_taken_from_a_shape) {
  std::string const prefix = "model.layers.0.mlp.experts.";
  auto const build = [&](std::string const& model, index_t inter) {
    checkpoint_builder builder;
    builder.config(case_config(R"("model_type": ")" + model + R"(")", 1, 64, inter));
    builder.add(prefix + "gate_up_proj", bf16, {3, 64, 2 * inter});
    builder.add(prefix + "down_proj", bf16, {3, inter, 64});
    return builder;
  };
  auto square = build("qwen3_vl_moe", 32);  // gate_up is square
  auto const known = square.resolve();
  ASSERT_TRUE(known.sound()) << all_texts(known);
  EXPECT_EQ(known.layers.front().up.format.values, (checkpoint::placement{32, 1, 64, 4096}));
  EXPECT_EQ(known.found.count("orientation-not-inferable"), 1);
  // the same bytes of a family that stores rows
  auto rows = build("qwen3_5_moe", 64);
  rows.add(prefix + "gate_up_proj", bf16, {3, 128, 64});
  auto const other = rows.resolve();
  ASSERT_TRUE(other.sound()) << all_texts(other);
  EXPECT_EQ(other.layers.front().up.format.values, (checkpoint::placement{4096, 64, 1, 8192}));
  EXPECT_EQ(other.found.count("orientation-not-inferable"), 1);
  // a family that is not known is asked for, even where only one orientation fits
  auto unknown = build("new_moe", 48);
  auto const refused = unknown.resolve();
  EXPECT_EQ(refused.found.count("ambiguous-orientation"), 2);
  EXPECT_THAT(all_texts(refused), HasSubstr("state orientation=rows or orientation=transposed"));
  auto const assumed = unknown.resolve({"orientation=transposed"});
  EXPECT_TRUE(assumed.sound()) << all_texts(assumed);
  EXPECT_EQ(unknown.resolve({"orientation=rows"}).found.count("geometry"), 2);
}

TEST(checkpoint_trap, version_of_transformers_decides_where_the_type_does_not) {
  checkpoint_builder builder = case_of("D10").build();
  builder.config(case_config(R"("model_type": "qwen3_vl_moe", "transformers_version": "5.2.0", )" +
                             fp8_block));
  EXPECT_EQ(builder.resolve().found.count("ambiguous-orientation"), 2);
  EXPECT_TRUE(builder.resolve({"orientation=transposed"}).sound());
}

TEST(checkpoint_trap, gate_and_up_rows_are_interleaved_in_gpt_oss_only) {
  checkpoint_builder builder = case_of("D14").build();
  auto const resolved = builder.resolve();
  auto const& layer = resolved.layers.front();
  EXPECT_EQ(layer.gate.format.values.first, 0);
  EXPECT_EQ(layer.up.format.values.first, case_extents::hidden);
  EXPECT_EQ(layer.up.format.values.row_stride, 2 * case_extents::hidden);
  EXPECT_EQ(layer.up.format.scales.first, case_extents::hidden / 32);
  EXPECT_TRUE(layer.up.has_bias);
  EXPECT_EQ(layer.up.bias, (checkpoint::placement{1, 2, 0, 2 * case_extents::inter}));
  EXPECT_EQ(layer.gate.experts[1].values, layer.up.experts[1].values);
  auto const granite = case_of("D28").build().resolve();
  EXPECT_EQ(granite.layers.front().up.format.values.first,
            case_extents::inter * case_extents::hidden);
}

TEST(checkpoint_trap, w1_and_w3_keep_their_own_scalars) {
  checkpoint_builder builder = case_of("D18").build();
  auto const resolved = builder.resolve();
  auto const& layer = resolved.layers.front();
  EXPECT_EQ(layer.gate.experts[1].scales->name,
            "model.layers.0.block_sparse_moe.experts.1.w1.weight_scale");
  EXPECT_EQ(layer.up.experts[1].scales->name,
            "model.layers.0.block_sparse_moe.experts.1.w3.weight_scale");
  EXPECT_EQ(layer.gate.format.scales.slice, 1);
}

TEST(checkpoint_trap, one_scalar_for_all_experts_of_a_stack_is_shared) {
  checkpoint_builder builder = case_of("D17").build();
  auto const resolved = builder.resolve();
  EXPECT_EQ(resolved.layers.front().gate.format.scales.slice, 0);
}

TEST(checkpoint_trap, gate_up_grid_that_straddles_is_not_two_grids) {
  auto const build = [](index_t inter, index_t grid_rows) {
    std::string const prefix = "model.layers.0.mlp.experts.";
    checkpoint_builder builder;
    builder.config(case_config(R"("model_type": "qwen3_5_moe", )" + fp8_block, 1, 128, inter));
    builder.add(prefix + "gate_up_proj", f8_e4m3, {3, 2 * inter, 128});
    builder.add(prefix + "gate_up_proj_scale_inv", f32, {3, grid_rows, 1});
    builder.add(prefix + "down_proj", f8_e4m3, {3, 128, inter});
    builder.add(prefix + "down_proj_scale_inv", f32, {3, 1, ceil_div(inter, 128)});
    return builder;
  };
  auto fused = build(192, 3);
  auto const expanded = fused.resolve();
  ASSERT_TRUE(expanded.sound()) << all_texts(expanded);
  EXPECT_TRUE(expanded.layers.front().up.format.expand_scale_rows);
  EXPECT_EQ(expanded.layers.front().up.format.expand_offset, 192);
  auto halves = build(192, 4);
  EXPECT_EQ(halves.resolve().found.count("ambiguous-grid"), 1);
  auto const stated = halves.resolve({"grid=halves"});
  ASSERT_TRUE(stated.sound()) << all_texts(stated);
  EXPECT_EQ(stated.layers.front().up.format.layout, granularity::block(128, 128));
  EXPECT_EQ(stated.layers.front().up.format.scales.first, 2);
  // 200 rows: both readings have four rows of scales
  auto same = build(200, 4);
  EXPECT_EQ(same.resolve().found.count("ambiguous-grid"), 1);
  EXPECT_TRUE(same.resolve({"grid=fused"}).sound());
  EXPECT_TRUE(same.resolve({"grid=halves"}).sound());
}

TEST(checkpoint_trap, shared_experts_are_not_routed_experts) {
  checkpoint_builder builder = case_of("D8").build();
  for (std::string const part : {"gate_proj", "up_proj", "down_proj"}) {
    builder.add("model.layers.0.mlp.shared_experts." + part + ".weight", f8_e4m3, {256, 256});
    builder.add("model.layers.0.mlp.shared_experts." + part + ".weight_scale_inv", bf16, {2, 2});
  }
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  EXPECT_EQ(resolved.shared_expert_tensors, 6);
  EXPECT_EQ(resolved.dense.size(), 3U);
  EXPECT_EQ(resolved.layers.front().experts, 3);
  builder.remove("model.layers.0.mlp.shared_experts.up_proj.weight_scale_inv");
  EXPECT_EQ(builder.resolve().found.count("missing-scale"), 1);
}

TEST(checkpoint_trap, missing_swiglu_parameters_stop_a_layer_from_running_but_no_check) {
  checkpoint_builder builder = case_of("D14").build();
  builder.config(
      case_config(R"("model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"})"));
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  EXPECT_EQ(resolved.found.count("unknown-activation"), 1);
  EXPECT_FALSE(resolved.activation.has_value());
  EXPECT_NE(resolved.layers.front().activation.refusal.find("swiglu_limit"), std::string::npos);
}

TEST(checkpoint_trap, expert_counts_have_no_cap) {
  checkpoint_builder builder;
  builder.config(case_config(R"("model_type": "kimi_k2", )" + fp8_block, 1, 64, 32, 1500));
  add_experts(builder, block_tensors(f32), 1500, 64, 32);
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  EXPECT_EQ(resolved.layers.front().experts, 1500);
  EXPECT_EQ(resolved.layers.front().up.experts[1499].values->name,
            "model.layers.0.mlp.experts.1499.up_proj.weight");
}

TEST(checkpoint_trap, scale_in_another_shard) {
  checkpoint_builder builder = case_of("D8").build();
  builder.add("model.layers.0.mlp.experts.1.up_proj.weight_scale_inv", bf16, {2, 3}, 7);
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  EXPECT_EQ(resolved.layers.front().up.experts[1].values->shard, 0);
  EXPECT_EQ(resolved.layers.front().up.experts[1].scales->shard, 7);
}

TEST(checkpoint_trap, integers_of_one_byte_are_not_fp8) {
  for (file_dtype const type : {i8, u8, f8_e5m2, f8_e4m3fnuz}) {
    checkpoint_builder builder = case_of("D8").build();
    builder.add("model.layers.0.mlp.experts.1.up_proj.weight", type, {192, 320});
    auto const resolved = builder.resolve();
    EXPECT_EQ(resolved.found.count("no-dialect"), 1) << all_texts(resolved);
    EXPECT_THAT(all_texts(resolved),
                HasSubstr(std::string("does not store values as ") + std::string(name(type))));
  }
}

TEST(checkpoint_trap, down_scale_of_fbgemm_runs_over_outputs) {
  checkpoint_builder builder = case_of("D16").build();
  auto const resolved = builder.resolve();
  auto const& down = resolved.layers.front().down.format;
  EXPECT_EQ(down.layout, granularity::row());
  EXPECT_EQ(down.scales, (checkpoint::placement{0, 1, 1, case_extents::hidden}));
  EXPECT_EQ(down.values, (checkpoint::placement{0, 1, case_extents::hidden,
                                                case_extents::hidden * case_extents::inter}));
}

TEST(checkpoint_trap, squeezed_row_scales_are_accepted) {
  checkpoint_builder builder;
  builder.config(case_config(
      R"("model_type": "olmoe", "transformers_version": "5.6.0", )" + fp8_block, 1, 128, 256, 1));
  expert_tensors tensors = block_tensors(f32);
  tensors.scale_shape = [](index_t rows, index_t cols) {
    auto shape = blocks(rows, cols);
    std::erase(shape, 1);
    return shape;
  };
  add_experts(builder, tensors, 1, 128, 256);
  auto const resolved = builder.resolve();
  EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
  EXPECT_EQ(resolved.layers.front().dialect, "D30");
}

}  // namespace
}  // namespace moe64::test
