#include "checkpoint/load/opened.hpp"
#include "moe64/convert.hpp"
#include "moe64/cpu.hpp"
#include "support/defined_checkpoint.hpp"
#include "support/error_matcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace moe64::test {
namespace {

using checkpoint::key_schema;
using checkpoint::scale_codec;
using checkpoint::value_codec;

constexpr projection_kind projections[] = {projection_kind::gate, projection_kind::up,
                                           projection_kind::down};

convert_report convert_folder(std::string const& from, std::string const& out, convert_target to) {
  checkpoint_reader const reader(from);
  cpu_pool pool(2);
  convert_options options;
  options.to = to;
  return convert(reader, out, options, cpu_stream(&pool));
}

bool is_bare(dialect_case const& c) {
  return c.schema == key_schema::mlp_stack || c.schema == key_schema::mlp_stack_blocks ||
         c.schema == key_schema::feed_forward_stack;
}

/// No dialect states the result: stacks and names that only other formats have.
bool has_result(dialect_case const& c, convert_target to) {
  bool const block = to == convert_target::fp8_block;
  switch (c.schema) {
    case key_schema::mlp_stack_blocks:  // its biases belong to a stack
    case key_schema::experts_w123:      // no other format is known under these names
      return false;
    case key_schema::ffn_w123:
      return block;
    case key_schema::feed_forward_proj:
    case key_schema::feed_forward_stack:
    case key_schema::block_sparse_moe_stack:
      return !block;
    case key_schema::moe_stack:
      return block;
    case key_schema::mtp_mlp_proj:
      return block;
    default:
      return true;
  }
}

/// The name that an expert's projection has in the output.
std::string output_module(dialect_case const& c, tensor_map const& in, projection_kind projection,
                          index_t expert) {
  std::string const module = module_of(c, in, projection, expert);
  if (!is_bare(c)) return module;
  return module.substr(0, module.rfind('.') + 1) + std::to_string(expert) + "." +
         std::string(name(projection)) + "_proj";
}

/// Rows of one matrix of the output, and where its scales start.
struct output_matrix {
  tensor_bytes const* values;
  tensor_bytes const* scales;
  index_t first;        ///< of its values
  index_t first_scale;  ///< of its scales
};

output_matrix matrix_of(dialect_case const& c, tensor_map const& in, tensor_map const& out,
                        projection_kind projection, index_t expert, convert_target to) {
  std::string const module = output_module(c, in, projection, expert);
  std::string const suffix = to == convert_target::fp8_row      ? ".weight_scale"
                             : c.schema == key_schema::ffn_w123 ? ".scale"
                                                                : ".weight_scale_inv";
  output_matrix result{&out.at(module + ".weight"), &out.at(module + suffix), 0, 0};
  if (result.values->shape.size() < 3) return result;
  index_t const rows = result.values->shape[1];
  result.first = expert * rows * result.values->shape[2];
  result.first_scale = expert * result.scales->shape[1] * result.scales->shape[2];
  if (c.schema == key_schema::block_sparse_moe_stack && projection == projection_kind::up) {
    result.first += rows / 2 * result.values->shape[2];
    result.first_scale += rows / 2;
  }
  return result;
}

/// One block as the definition quantises it: scale = largest / 448, codes to nearest even.
void expect_block(defined_matrix const& numbers, output_matrix const& out, index_t row_begin,
                  index_t row_end, index_t col_begin, index_t col_end, index_t scale,
                  std::string const& where) {
  float largest = 0;
  for (index_t row = row_begin; row < row_end; ++row) {
    for (index_t col = col_begin; col < col_end; ++col) {
      largest = std::max(largest, std::fabs(numbers(row, col)));
    }
  }
  float expected = largest > 0 ? largest / 448.0F : 1.0F;
  bool const exponents = out.scales->type == file_dtype::f8_e8m0;
  if (exponents) expected = std::exp2(std::ceil(std::log2(expected)));
  ASSERT_EQ(stored_number(*out.scales, out.first_scale + scale), expected) << where;
  index_t wrong = 0;
  for (index_t row = row_begin; row < row_end; ++row) {
    for (index_t col = col_begin; col < col_end; ++col) {
      auto const code = static_cast<std::uint8_t>(
          out.values->bytes[static_cast<std::size_t>(out.first + row * numbers.cols() + col)]);
      wrong += code == to_e4m3(numbers(row, col) / expected) ? 0 : 1;
    }
  }
  ASSERT_EQ(wrong, 0) << where;
}

class convert_fp8 : public ::testing::TestWithParam<dialect_case> {};

TEST_P(convert_fp8, codes_and_scales_are_those_of_the_definition) {
  dialect_case const& c = GetParam();
  checkpoint_builder const builder = c.build();
  tensor_map const in = plausible_tensors(builder);
  for (convert_target const to : {convert_target::fp8_block, convert_target::fp8_row}) {
    temp_folder const source;
    temp_folder const parent;
    write_checkpoint(source, builder, in, 2);
    std::string const out = parent.file("out");
    if (!has_result(c, to)) {
      EXPECT_MOE64_ERROR(convert_folder(source.path().string(), out, to), errc::unsupported,
                         "[convert]");
      EXPECT_FALSE(std::filesystem::exists(out));
      continue;
    }
    auto const report = convert_folder(source.path().string(), out, to);
    EXPECT_TRUE(report.clean());
    tensor_map const result = read_tensors(out);
    bool const block = to == convert_target::fp8_block;
    bool const same = c.values == value_codec::e4m3 && !is_bare(c) &&
                      (block ? c.scales == scale_codec::blk || c.scales == scale_codec::blk_pow2 ||
                                   c.scales == scale_codec::blk4d
                             : c.scales == scale_codec::row);
    for (projection_kind const projection : projections) {
      for (index_t expert = 0; expert < case_extents::experts; ++expert) {
        defined_matrix const numbers(c, in, projection, expert);
        output_matrix const at = matrix_of(c, in, result, projection, expert, to);
        std::string const where =
            c.id + " " + std::string(name(projection)) + " " + std::to_string(expert);
        index_t const height = block ? 128 : 1;
        index_t const width = block ? 128 : numbers.cols();
        index_t scale = 0;
        for (index_t row = 0; row < numbers.rows(); row += height) {
          for (index_t col = 0; col < numbers.cols(); col += width, ++scale) {
            index_t const row_end = std::min(numbers.rows(), row + height);
            index_t const col_end = std::min(numbers.cols(), col + width);
            if (!same) {
              expect_block(numbers, at, row, row_end, col, col_end, scale, where);
              continue;
            }
            // it was in this format already: the same codes, and scales that are the same numbers
            float const stored = stored_number(*at.scales, at.first_scale + scale);
            index_t const i = at.first + row * numbers.cols() + col;
            ASSERT_EQ(stored_number(*at.values, i) * stored, numbers(row, col)) << where;
          }
        }
      }
    }
    if (same && !checkpoint::is_stacked(c.schema)) {
      std::string const module = module_of(c, in, projection_kind::down, 1);
      EXPECT_EQ(result.at(module + ".weight").bytes, in.at(module + ".weight").bytes);
    }
    checkpoint_reader const again(out);
    EXPECT_TRUE(again.internals().resolved.sound());
    EXPECT_GT(again.internals().resolved.weights_found, 0);
    EXPECT_EQ(again.internals().resolved.weights_found, again.internals().resolved.matched);
  }
}

INSTANTIATE_TEST_SUITE_P(every, convert_fp8, ::testing::ValuesIn(dialect_cases()),
                         [](auto const& drawn) {
                           return drawn.param.id + "_" + std::to_string(drawn.index);
                         });

TEST(convert_fp8, a_plain_checkpoint_gets_its_experts_quantised_and_nothing_else) {
  temp_folder const source;
  temp_folder const parent;
  checkpoint_builder builder;
  builder.config(case_config(R"("model_type": "qwen3_moe", "torch_dtype": "bfloat16")"));
  expert_tensors plain;
  plain.value_type = file_dtype::bf16;
  add_experts(builder, plain);
  builder.add("model.layers.0.mlp.gate.weight", file_dtype::bf16, {3, 320});
  builder.add("model.layers.0.input_layernorm.weight", file_dtype::bf16, {320});
  builder.add("lm_head.weight", file_dtype::bf16, {10, 320});
  tensor_map const in = plausible_tensors(builder);
  write_checkpoint(source, builder, in);
  for (convert_target const to : {convert_target::fp8_block, convert_target::fp8_row}) {
    std::string const out = parent.file(name(to));
    auto const report = convert_folder(source.path().string(), out, to);
    EXPECT_EQ(report.converted, 9);
    EXPECT_EQ(report.copied, 3);
    tensor_map const result = read_tensors(out);
    EXPECT_EQ(result.at("model.layers.0.mlp.gate.weight").bytes,
              in.at("model.layers.0.mlp.gate.weight").bytes);
    checkpoint_reader const again(out);
    auto const& quant = again.internals().resolved.config.quant;
    EXPECT_TRUE(quant.skipped.covers("model.layers.0.mlp.gate"));
    EXPECT_TRUE(quant.skipped.covers("lm_head"));
    EXPECT_FALSE(quant.skipped.covers("model.layers.0.mlp.experts.0.up_proj"));
  }
  EXPECT_TRUE(
      convert_folder(source.path().string(), parent.file("same"), convert_target::bf16).clean());
}

TEST(convert_fp8, layers_that_were_plain_stay_plain_and_are_listed) {
  temp_folder const source;
  temp_folder const parent;
  checkpoint_builder builder;
  builder.config(case_config(
      R"("model_type": "glm4_moe_lite", "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["re:.*layers.1.*"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})",
      2));
  expert_tensors codes;
  codes.scales = ".weight_scale";
  codes.scale_type = file_dtype::bf16;
  codes.scale_shape = [](index_t rows, index_t) { return std::vector<index_t>{rows, 1}; };
  add_experts(builder, codes);
  expert_tensors plain;
  plain.prefix = "model.layers.1.mlp.experts.";
  plain.value_type = file_dtype::bf16;
  add_experts(builder, plain);
  tensor_map const in = plausible_tensors(builder);
  write_checkpoint(source, builder, in);
  for (convert_target const to : {convert_target::fp8_block, convert_target::fp8_row}) {
    std::string const out = parent.file(name(to));
    auto const report = convert_folder(source.path().string(), out, to);
    EXPECT_EQ(report.converted, 9);
    EXPECT_EQ(report.copied, 9);
    checkpoint_reader const again(out);
    auto const& resolved = again.internals().resolved;
    EXPECT_EQ(resolved.found.count("unquantised"), 0);
    EXPECT_TRUE(resolved.config.quant.skipped.covers("model.layers.1.mlp.experts.0.up_proj"));
  }
}

}  // namespace
}  // namespace moe64::test
