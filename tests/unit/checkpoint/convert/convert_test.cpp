#include "moe64/convert.hpp"

#include "checkpoint/convert/files.hpp"
#include "moe64/cpu.hpp"
#include "support/defined_checkpoint.hpp"
#include "support/error_matcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace moe64::test {
namespace {

using checkpoint::key_schema;
using checkpoint::scale_codec;

constexpr projection_kind projections[] = {projection_kind::gate, projection_kind::up,
                                           projection_kind::down};
constexpr index_t hidden = case_extents::hidden;
constexpr index_t inter = case_extents::inter;

convert_report convert_folder(temp_folder const& from, std::string const& out,
                              convert_options const& options,
                              std::vector<std::string> const& assume = {}) {
  checkpoint_options how;
  how.assume = assume;
  checkpoint_reader const reader(from.path().string(), how);
  cpu_pool pool(3);
  return convert(reader, out, options, cpu_stream(&pool));
}

std::string text_of(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::uint16_t word_at(tensor_bytes const& tensor, index_t i) {
  std::uint16_t word = 0;
  std::memcpy(&word, tensor.bytes.data() + 2 * i, 2);
  return word;
}

/// Where number (row, col) of an expert's projection is in the bf16 or f16 output, by the rules of
/// docs/checkpoints.md.
struct output_place {
  tensor_bytes const* tensor;
  index_t first, row_stride, col_stride;
};

output_place place_of(dialect_case const& c, tensor_map const& in, tensor_map const& out,
                      projection_kind projection, index_t expert) {
  std::string const module = module_of(c, in, projection, expert);
  bool const bare = c.schema == key_schema::mlp_stack || c.schema == key_schema::mlp_stack_blocks ||
                    c.schema == key_schema::feed_forward_stack;
  bool const down = projection == projection_kind::down;
  bool const up = projection == projection_kind::up;
  index_t const rows = down ? hidden : inter;
  index_t const cols = down ? inter : hidden;
  auto const& tensor = out.at(bare ? module : module + ".weight");
  index_t const slice = checkpoint::is_stacked(c.schema) ? expert : 0;
  if (bare) {  // [experts, in, out] with gate and up side by side or taking turns
    index_t const outputs = down ? rows : 2 * rows;
    index_t const first = slice * outputs * cols;
    if (c.schema == key_schema::mlp_stack_blocks && !down)
      return {&tensor, first + (up ? 1 : 0), 2, outputs};
    return {&tensor, first + (up ? rows : 0), 1, outputs};
  }
  bool const fused = c.schema == key_schema::block_sparse_moe_stack && !down;
  index_t const slice_size = rows * cols * (fused ? 2 : 1);
  return {&tensor, slice * slice_size + (fused && up ? rows * cols : 0), cols, 1};
}

class convert_dialect : public ::testing::TestWithParam<dialect_case> {};

TEST_P(convert_dialect, bf16_and_f16_are_the_defined_numbers_bit_for_bit) {
  dialect_case const& c = GetParam();
  checkpoint_builder const builder = c.build();
  tensor_map const in = plausible_tensors(builder);
  for (convert_target const target : {convert_target::bf16, convert_target::f16}) {
    temp_folder const source;
    temp_folder const parent;
    write_checkpoint(source, builder, in, 2);
    std::string const out = parent.file("out");
    convert_options options;
    options.to = target;
    convert_report const report = convert_folder(source, out, options);
    EXPECT_TRUE(report.clean()) << report.anomalies.front();
    EXPECT_EQ(report.tensors.size(), in.size());
    EXPECT_EQ(report.converted + report.copied + report.consumed + report.dropped,
              static_cast<index_t>(in.size()));
    tensor_map const result = read_tensors(out);
    for (projection_kind const projection : projections) {
      for (index_t expert = 0; expert < case_extents::experts; ++expert) {
        defined_matrix const numbers(c, in, projection, expert);
        output_place const at = place_of(c, in, result, projection, expert);
        index_t wrong = 0;
        for (index_t row = 0; row < numbers.rows(); ++row) {
          for (index_t col = 0; col < numbers.cols(); ++col) {
            float const number = numbers(row, col);
            std::uint16_t const expected =
                target == convert_target::bf16 ? to_bf16(number) : to_f16(number);
            index_t const i = at.first + row * at.row_stride + col * at.col_stride;
            wrong += word_at(*at.tensor, i) == expected ? 0 : 1;
          }
        }
        EXPECT_EQ(wrong, 0) << c.id << " " << name(projection) << " of expert " << expert;
      }
    }
    // what it says about itself is true: it opens as a checkpoint of plain weights
    checkpoint_reader const again(out);
    EXPECT_TRUE(again.internals().resolved.sound());
    EXPECT_EQ(again.internals().resolved.weights_found, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(every, convert_dialect, ::testing::ValuesIn(dialect_cases()),
                         [](auto const& drawn) {
                           return drawn.param.id + "_" + std::to_string(drawn.index);
                         });

dialect_case const& case_named(std::string const& id) {
  for (dialect_case const& c : dialect_cases()) {
    if (c.id == id) return c;
  }
  throw std::invalid_argument(id);
}

TEST(convert, config_changes_what_is_no_longer_true_and_nothing_else) {
  temp_folder const source;
  temp_folder const parent;
  dialect_case c = case_named("D1");
  checkpoint_builder builder = c.build();
  std::string const members =
      R"("model_type": "deepseek_v3", "torch_dtype": "float16", "rope_theta": 1.00e+06, "big": 123456789012345678901234567890, )"
      R"("list": [1, 2.50, null, true, {"a": "é\n"}], )";
  builder.config(case_config(members + c.config.substr(c.config.find("\"quantization_config\""))));
  write_checkpoint(source, builder, plausible_tensors(builder));
  source.write("tokenizer.json", "{}");
  source.write("weights.bin", "no");
  auto const report = convert_folder(source, parent.file("out"), {});
  EXPECT_THAT(report.side_files, ::testing::ElementsAre("tokenizer.json"));
  EXPECT_THAT(report.notes, ::testing::Contains(::testing::HasSubstr("weights.bin")));
  std::string const text = text_of(parent.file("out/config.json"));
  EXPECT_EQ(text.find("quantization_config"), std::string::npos);
  EXPECT_NE(text.find("\"torch_dtype\": \"bfloat16\""), std::string::npos);
  EXPECT_NE(text.find("\"rope_theta\": 1.00e+06"), std::string::npos);
  EXPECT_NE(text.find("123456789012345678901234567890"), std::string::npos);
  auto before = nlohmann::ordered_json::parse(builder.texts()[0]);
  auto const after = nlohmann::ordered_json::parse(text);
  before.erase("quantization_config");
  before["torch_dtype"] = "bfloat16";
  EXPECT_EQ(before.dump(), after.dump());
}

TEST(convert, hf_quant_config_is_left_out_and_activation_scales_are_dropped_with_a_reason) {
  temp_folder const source;
  temp_folder const parent;
  checkpoint_builder const builder = case_named("D23").build();
  tensor_map const in = plausible_tensors(builder);
  write_checkpoint(source, builder, in);
  auto const report = convert_folder(source, parent.file("out"), {});
  EXPECT_FALSE(std::filesystem::exists(parent.file("out/hf_quant_config.json")));
  EXPECT_EQ(report.converted, 9);
  EXPECT_EQ(report.consumed, 18);  // block scales and global scales
  EXPECT_EQ(report.dropped, 9);
  for (tensor_account const& account : report.tensors) {
    bool const activation = account.tensor.ends_with(".input_scale");
    EXPECT_EQ(account.fate == tensor_fate::dropped, activation) << account.tensor;
    EXPECT_EQ(account.reason.empty(), account.fate == tensor_fate::converted) << account.tensor;
  }
}

TEST(convert, plain_tensors_are_copied_and_dense_modules_converted) {
  temp_folder const source;
  temp_folder const parent;
  checkpoint_builder builder = case_named("D1").build();
  builder.add("model.layers.0.self_attn.q_proj.weight", file_dtype::f8_e4m3, {200, 130});
  builder.add("model.layers.0.self_attn.q_proj.weight_scale_inv", file_dtype::f32, {2, 2});
  builder.add("model.norm.weight", file_dtype::bf16, {320});
  builder.add("lm_head.weight", file_dtype::f32, {5, 7});
  builder.add("some.table", file_dtype::i64, {3});
  builder.add("empty", file_dtype::f32, {0, 4});
  tensor_map const in = plausible_tensors(builder);
  write_checkpoint(source, builder, in, 3);
  auto const report = convert_folder(source, parent.file("out"), {});
  tensor_map const out = read_tensors(parent.file("out"));
  for (char const* const name : {"model.norm.weight", "lm_head.weight", "some.table", "empty"}) {
    EXPECT_EQ(out.at(name).bytes, in.at(name).bytes) << name;
    EXPECT_EQ(out.at(name).type, in.at(name).type) << name;
  }
  EXPECT_EQ(report.copied, 4);
  auto const& codes = in.at("model.layers.0.self_attn.q_proj.weight");
  auto const& scales = in.at("model.layers.0.self_attn.q_proj.weight_scale_inv");
  auto const& numbers = out.at("model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(numbers.shape, (std::vector<index_t>{200, 130}));
  for (index_t row = 0; row < 200; ++row) {
    for (index_t col = 0; col < 130; ++col) {
      float const number =
          stored_number(codes, row * 130 + col) * stored_number(scales, row / 128 * 2 + col / 128);
      ASSERT_EQ(word_at(numbers, row * 130 + col), to_bf16(number)) << row << " " << col;
    }
  }
}

TEST(convert, f16_overflow_is_counted_and_an_anomaly) {
  temp_folder const source;
  temp_folder const parent;
  dialect_case const& c = case_named("D18");
  checkpoint_builder const builder = c.build();
  tensor_map in = plausible_tensors(builder);
  std::string const module = module_of(c, in, projection_kind::up, 1);
  float const huge = 1000.0F;
  std::memcpy(in.at(module + ".weight_scale").bytes.data(), &huge, 4);
  write_checkpoint(source, builder, in);
  index_t expected = 0;
  defined_matrix const numbers(c, in, projection_kind::up, 1);
  for (index_t row = 0; row < numbers.rows(); ++row) {
    for (index_t col = 0; col < numbers.cols(); ++col) {
      expected += (to_f16(numbers(row, col)) & 0x7fffU) == 0x7c00U ? 1 : 0;
    }
  }
  convert_options options;
  options.to = convert_target::f16;
  auto const report = convert_folder(source, parent.file("out"), options);
  EXPECT_GT(expected, 0);
  EXPECT_EQ(report.overflows, expected);
  EXPECT_EQ(report.not_finite, 0);
  EXPECT_FALSE(report.clean());
  EXPECT_THAT(report.anomalies, ::testing::Contains(::testing::HasSubstr(module)));
  // bf16 has the range: no anomaly
  EXPECT_TRUE(convert_folder(source, parent.file("wide"), {}).clean());
}

TEST(convert, nan_codes_are_an_anomaly) {
  temp_folder const source;
  temp_folder const parent;
  checkpoint_builder const builder = case_named("D1").build();
  tensor_map in = plausible_tensors(builder);
  in.at("model.layers.0.mlp.experts.1.up_proj.weight").bytes[77] = std::byte{0x7f};
  write_checkpoint(source, builder, in);
  auto const report = convert_folder(source, parent.file("out"), {});
  EXPECT_EQ(report.not_finite, 1);
  EXPECT_FALSE(report.clean());
}

TEST(convert, a_checkpoint_that_is_not_sound_is_refused_unless_told_otherwise) {
  temp_folder const source;
  temp_folder const parent;
  checkpoint_builder builder = case_named("D1").build();
  builder.remove("model.layers.0.mlp.experts.1.up_proj.weight_scale_inv");
  builder.add("model.layers.0.self_attn.q_proj.weight", file_dtype::f8_e4m3, {128, 128});
  builder.add("model.layers.0.self_attn.q_proj.weight_scale_inv", file_dtype::f32, {1, 1});
  tensor_map const in = plausible_tensors(builder);
  write_checkpoint(source, builder, in);
  EXPECT_MOE64_ERROR(convert_folder(source, parent.file("out"), {}), errc::missing_scale,
                     "up_proj.weight");
  EXPECT_FALSE(std::filesystem::exists(parent.file("out")));
  convert_options options;
  options.unsound = true;
  auto const report = convert_folder(source, parent.file("out"), options);
  EXPECT_FALSE(report.clean());
  tensor_map const out = read_tensors(parent.file("out"));
  EXPECT_EQ(out.at("model.layers.0.self_attn.q_proj.weight").type, file_dtype::bf16);
  EXPECT_EQ(out.at("model.layers.0.mlp.experts.1.up_proj.weight").type, file_dtype::f8_e4m3);
}

TEST(convert, a_weight_shape_that_lies_is_refused) {
  temp_folder const source;
  temp_folder const parent;
  checkpoint_builder const builder = case_named("D13").build();
  tensor_map in = plausible_tensors(builder);
  in.at("model.layers.0.mlp.experts.0.up_proj.weight_shape").bytes[0] ^= std::byte{1};
  write_checkpoint(source, builder, in);
  EXPECT_MOE64_ERROR(convert_folder(source, parent.file("out"), {}), errc::shape_mismatch,
                     "weight_shape");
}

TEST(convert, assumptions_are_recorded_in_every_file) {
  temp_folder const source;
  temp_folder const parent;
  dialect_case const& c = case_named("D1");
  checkpoint_builder builder = c.build();
  std::string text = builder.texts()[0];
  text.replace(text.find("[128, 128]"), 10, "[64, 64]");
  builder.config(text);
  write_checkpoint(source, builder, plausible_tensors(builder));
  convert_options options;
  options.shard_bytes = 1;
  auto const report = convert_folder(source, parent.file("out"), options, {"block=128x128"});
  EXPECT_THAT(report.assumed, ::testing::ElementsAre("block=128x128"));
  EXPECT_EQ(report.shards, 9);
  checkpoint_reader const again(parent.file("out"));
  for (auto const& shard : again.internals().files.shards()) {
    EXPECT_THAT(shard.metadata, ::testing::Contains(::testing::Pair(std::string("moe64_assumed"),
                                                                    std::string("block=128x128"))));
  }
}

TEST(convert, same_bytes_whatever_threads_and_memory) {
  temp_folder const source;
  temp_folder const parent;
  checkpoint_builder const builder = case_named("D10").build();
  write_checkpoint(source, builder, plausible_tensors(builder), 2);
  checkpoint_reader const reader(source.path().string());
  std::string first;
  for (index_t const threads : {1, 5}) {
    for (index_t const memory : {index_t{4} << 20, index_t{512} << 20}) {
      std::string const out = parent.file(std::to_string(threads) + "_" + std::to_string(memory));
      convert_options options;
      options.memory_bytes = memory;
      cpu_pool pool(threads);
      auto const report = convert(reader, out, options, cpu_stream(&pool));
      EXPECT_LE(report.buffer_bytes, memory);
      std::string const bytes = text_of(out + "/model.safetensors");
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first);
    }
  }
}

TEST(convert, too_little_memory_is_refused_before_anything_is_written) {
  temp_folder const source;
  temp_folder const parent;
  checkpoint_builder const builder = case_named("D1").build();
  write_checkpoint(source, builder, plausible_tensors(builder));
  convert_options options;
  options.memory_bytes = 1000;
  EXPECT_MOE64_ERROR(convert_folder(source, parent.file("out"), options), errc::out_of_memory,
                     "1000 bytes of memory");
  EXPECT_FALSE(std::filesystem::exists(parent.file("out")));
}

}  // namespace
}  // namespace moe64::test
