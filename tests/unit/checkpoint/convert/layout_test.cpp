// Layouts that no release has, but that an assumption can state.

#include "checkpoint/load/opened.hpp"
#include "moe64/convert.hpp"
#include "moe64/cpu.hpp"
#include "support/defined_checkpoint.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace moe64::test {
namespace {

constexpr index_t hidden = case_extents::hidden;
constexpr index_t inter = case_extents::inter;
constexpr index_t experts = case_extents::experts;

dialect_case const& case_named(std::string const& id) {
  for (dialect_case const& c : dialect_cases()) {
    if (c.id == id) return c;
  }
  throw std::invalid_argument(id);
}

std::string const prefix = "model.language_model.layers.0.mlp.experts.";

tensor_map convert_to(convert_target to, checkpoint_builder const& builder, tensor_map const& in,
                      std::vector<std::string> const& assume) {
  temp_folder const source;
  temp_folder const parent;
  write_checkpoint(source, builder, in, 2);
  checkpoint_options how;
  how.assume = assume;
  checkpoint_reader const reader(source.path().string(), how);
  convert_options options;
  options.to = to;
  EXPECT_TRUE(convert(reader, parent.file("out"), options, cpu_stream()).clean());
  return read_tensors(parent.file("out"));
}

TEST(convert_layout, gate_and_up_with_grids_of_their_own) {
  checkpoint_builder builder = case_named("D10").build();
  builder.add(prefix + "gate_up_proj_scale_inv", file_dtype::bf16, {experts, 3, 4});
  tensor_map const in = plausible_tensors(builder);
  tensor_map const out = convert_to(convert_target::bf16, builder, in, {"grid=halves"});
  auto const& codes = in.at(prefix + "gate_up_proj");
  auto const& scales = in.at(prefix + "gate_up_proj_scale_inv");
  auto const& numbers = out.at(prefix + "gate_up_proj");
  ASSERT_EQ(numbers.shape, (std::vector<index_t>{experts, hidden, 2 * inter}));
  index_t wrong = 0;
  for (index_t i = 0; i < experts * hidden * 2 * inter; ++i) {
    index_t const output = i % (2 * inter);
    index_t const input = i / (2 * inter) % hidden;
    index_t const expert = i / (2 * inter) / hidden;
    index_t const block = output < inter ? output / 128 : 2 + (output - inter) / 128;
    float const scale = stored_number(scales, (expert * 3 + input / 128) * 4 + block);
    std::uint16_t word = 0;
    std::memcpy(&word, numbers.bytes.data() + 2 * i, 2);
    wrong += word == to_bf16(stored_number(codes, i) * scale) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0);
}

/// fp8-row of one part of a fused stack; number(expert, row, col) is the definition.
template <class Number>
void expect_rows(tensor_map const& out, std::string const& part_prefix, std::string const& part,
                 Number const& number) {
  for (index_t expert = 0; expert < experts; ++expert) {
    std::string const module = part_prefix + std::to_string(expert) + "." + part;
    auto const& values = out.at(module + ".weight");
    auto const& row_scales = out.at(module + ".weight_scale");
    ASSERT_EQ(values.shape, (std::vector<index_t>{inter, hidden}));
    ASSERT_EQ(row_scales.shape, (std::vector<index_t>{inter, 1}));
    index_t wrong = 0;
    for (index_t row = 0; row < inter; ++row) {
      float largest = 0;
      for (index_t col = 0; col < hidden; ++col) {
        largest = std::max(largest, std::fabs(number(expert, row, col)));
      }
      float const scale = largest / 448.0F;
      wrong += stored_number(row_scales, row) == scale ? 0 : 1;
      for (index_t col = 0; col < hidden; ++col) {
        auto const code =
            static_cast<std::uint8_t>(values.bytes[static_cast<std::size_t>(row * hidden + col)]);
        wrong += code == to_e4m3(number(expert, row, col) / scale) ? 0 : 1;
      }
    }
    EXPECT_EQ(wrong, 0) << module;
  }
}

TEST(convert_layout, interleaved_and_transposed_stacks_become_single_experts) {
  checkpoint_builder const builder = case_named("D16").build();
  tensor_map const in = plausible_tensors(builder);
  tensor_map const out = convert_to(convert_target::fp8_row, builder, in, {"gate_up=interleaved"});
  std::string const llama = "language_model.model.layers.0.feed_forward.experts.";
  auto const& codes = in.at(llama + "gate_up_proj");
  auto const& scales = in.at(llama + "gate_up_proj_scale");
  for (index_t const part : {0, 1}) {
    expect_rows(out, llama, part == 0 ? "gate_proj" : "up_proj",
                [&](index_t expert, index_t row, index_t col) {
                  index_t const output = 2 * row + part;
                  return stored_number(codes, (expert * hidden + col) * 2 * inter + output) *
                         stored_number(scales, expert * 2 * inter + output);
                });
  }
}

TEST(convert_layout, stacks_that_are_not_transposed_become_single_experts) {
  checkpoint_builder builder = case_named("D10").build();
  builder.add(prefix + "gate_up_proj", file_dtype::f8_e4m3, {experts, 2 * inter, hidden});
  builder.add(prefix + "gate_up_proj_scale_inv", file_dtype::bf16, {experts, 3, 3});
  builder.add(prefix + "down_proj", file_dtype::f8_e4m3, {experts, hidden, inter});
  builder.add(prefix + "down_proj_scale_inv", file_dtype::bf16, {experts, 3, 2});
  tensor_map const in = plausible_tensors(builder);
  tensor_map const out = convert_to(convert_target::fp8_row, builder, in, {"orientation=rows"});
  auto const& codes = in.at(prefix + "gate_up_proj");
  auto const& scales = in.at(prefix + "gate_up_proj_scale_inv");
  for (index_t const part : {0, 1}) {
    expect_rows(out, prefix, part == 0 ? "gate_proj" : "up_proj",
                [&](index_t expert, index_t row, index_t col) {
                  index_t const output = part * inter + row;
                  return stored_number(codes, (expert * 2 * inter + output) * hidden + col) *
                         stored_number(scales, (expert * 3 + output / 128) * 3 + col / 128);
                });
  }
}

}  // namespace
}  // namespace moe64::test
