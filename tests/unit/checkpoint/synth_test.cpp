#include "moe64/synth.hpp"

#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "checkpoint/dialect/table.hpp"
#include "checkpoint/files/folder.hpp"
#include "checkpoint/synth/numbers.hpp"
#include "core/float8.hpp"
#include "moe64/cpu.hpp"
#include "moe64/error.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

using checkpoint::folder;
using checkpoint::resolved_checkpoint;
using testing::HasSubstr;

synth_options small(std::string like, std::string dialect = {}) {
  synth_options options;
  options.like = std::move(like);
  options.dialect = std::move(dialect);
  options.scale_down = 64;
  options.layers = 4;
  return options;
}

synth_report make(temp_folder const& where, synth_options const& options) {
  return synthesize(where.file("made"), options, cpu_stream());
}

std::string all_texts(resolved_checkpoint const& resolved) {
  std::string texts;
  for (auto const& entry : resolved.found.kept()) {
    texts += std::string(entry.rule) + ": " + entry.text + "\n";
  }
  return texts;
}

/// Every file by name, with its bytes.
std::map<std::string, std::string> files_of(std::filesystem::path const& path) {
  std::map<std::string, std::string> files;
  for (auto const& entry : std::filesystem::directory_iterator(path)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename()] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

float scale_number(checkpoint::file_dtype type, std::byte const* from) {
  if (type == checkpoint::file_dtype::f32) {
    float number = 0;
    std::memcpy(&number, from, sizeof number);
    return number;
  }
  if (type == checkpoint::file_dtype::bf16) {
    std::uint16_t code = 0;
    std::memcpy(&code, from, sizeof code);
    return decode_bf16(code);
  }
  auto const code = std::to_integer<std::uint8_t>(*from);
  return type == checkpoint::file_dtype::f8_e4m3 ? decode_float<e4m3_format>(code)
                                                 : decode_e8m0(code);
}

/// The scales of a projection as they are multiplied with.
std::vector<float> scales_of(folder const& files, checkpoint::projection_entry const& projection) {
  std::vector<float> result;
  for (auto const& source : projection.experts) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(source.scales->bytes));
    files.read(*source.scales, 0, bytes);
    float global = 1.0F;
    if (source.global != nullptr) {
      std::byte raw[4];
      files.read(*source.global, 0, raw);
      global = scale_number(checkpoint::file_dtype::f32, raw);
      if (projection.format.direction == global_scale::direction::divide) global = 1.0F / global;
    }
    auto const size = static_cast<std::size_t>(bits(source.scales->type) / 8);
    for (std::size_t at = 0; at < bytes.size(); at += size) {
      result.push_back(global * scale_number(source.scales->type, bytes.data() + at));
    }
  }
  return result;
}

class every_model : public testing::TestWithParam<synth_model> {};

TEST_P(every_model, is_read_as_its_own_dialect_without_a_finding) {
  temp_folder where;
  synth_report const report = make(where, small(GetParam().like));
  folder const files = folder::open(where.file("made"));
  EXPECT_TRUE(files.warnings().empty());
  resolved_checkpoint const resolved = checkpoint::resolve(files);
  ASSERT_TRUE(resolved.sound()) << all_texts(resolved);
  EXPECT_EQ(resolved.found.count(finding_level::warning), 0) << all_texts(resolved);
  EXPECT_THAT(resolved.dialects, testing::Contains(GetParam().dialect));
  EXPECT_EQ(std::vector<std::string>(resolved.dialects.begin(), resolved.dialects.end()),
            report.dialects);
  EXPECT_EQ(resolved.weights_found, resolved.matched);
  EXPECT_GT(resolved.matched, 0);
  EXPECT_TRUE(resolved.activation.has_value());
  EXPECT_EQ(report.tensors, static_cast<index_t>(files.tensors().size()));
  EXPECT_EQ(report.shards, static_cast<index_t>(files.shards().size()));
  index_t backbone = 0;
  for (auto const& layer : resolved.layers) {
    EXPECT_TRUE(layer.sound);
    EXPECT_EQ(layer.experts, report.experts);
    EXPECT_EQ(layer.gate.format.rows, report.inter);
    EXPECT_EQ(layer.gate.format.cols, report.hidden);
    backbone += layer.mtp ? 0 : 1;
  }
  EXPECT_EQ(backbone, report.moe_layers);
}

TEST_P(every_model, has_scales_of_the_size_of_real_ones) {
  temp_folder where;
  make(where, small(GetParam().like));
  folder const files = folder::open(where.file("made"));
  resolved_checkpoint const resolved = checkpoint::resolve(files);
  for (auto const& layer : resolved.layers) {
    if (layer.dialect == "plain") continue;
    for (auto const* const projection : {&layer.gate, &layer.up, &layer.down}) {
      for (float const scale : scales_of(files, *projection)) {
        ASSERT_GT(scale, 1e-5F) << layer.dialect;
        ASSERT_LT(scale, 1.6e-2F) << layer.dialect;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(synth, every_model, testing::ValuesIn(synth_models()),
                         [](auto const& entry) {
                           std::string name = entry.param.like;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

TEST(synth, makes_every_dialect_of_the_table_by_its_id) {
  for (checkpoint::dialect const& row : checkpoint::dialect_table()) {
    temp_folder where;
    synth_report const report = make(where, small("", std::string(row.id)));
    EXPECT_THAT(report.dialects, testing::Contains(std::string(row.id)));
  }
}

TEST(synth, same_options_give_the_same_bytes_whatever_the_threads) {
  temp_folder where;
  for (std::string const like : {"glm-4.7-flash", "gpt-oss", "deepseek-v3-nvfp4"}) {
    synth_options options = small(like);
    synthesize(where.file(like + "1"), options, cpu_stream());
    cpu_pool pool(4);
    synthesize(where.file(like + "2"), options, cpu_stream(&pool));
    options.seed = 2;
    synthesize(where.file(like + "3"), options, cpu_stream());
    auto const first = files_of(where.file(like + "1"));
    EXPECT_EQ(first, files_of(where.file(like + "2")));
    auto const other = files_of(where.file(like + "3"));
    for (auto const& [name, bytes] : first) {
      bool const tensors = name.ends_with(".safetensors");
      EXPECT_EQ(bytes == other.at(name), !tensors) << name;
    }
  }
}

TEST(synth, numbers_are_close_to_normal_and_bounded) {
  checkpoint::synth_numbers const numbers(1, "model.embed_tokens.weight");
  double sum = 0;
  double squares = 0;
  float largest = 0;
  constexpr index_t count = 100'000;
  for (index_t i = 0; i < count; ++i) {
    float const number = numbers.normal(i);
    sum += number;
    squares += double{number} * number;
    largest = std::max(largest, std::fabs(number));
  }
  EXPECT_NEAR(sum / count, 0.0, 0.02);
  EXPECT_NEAR(squares / count, 1.0, 0.02);
  EXPECT_GT(largest, 3.5F);
  EXPECT_LT(largest, checkpoint::synth_numbers::largest);
}

TEST(synth, a_scale_may_be_in_another_file_than_its_weight) {
  temp_folder where;
  make(where, small("glm-5.2"));
  folder const files = folder::open(where.file("made"));
  resolved_checkpoint const resolved = checkpoint::resolve(files);
  index_t apart = 0;
  for (auto const& layer : resolved.layers) {
    for (auto const* const projection : {&layer.gate, &layer.up, &layer.down}) {
      for (auto const& source : projection->experts) {
        apart += source.values->shard != source.scales->shard ? 1 : 0;
      }
    }
  }
  EXPECT_GT(apart, 0);
}

TEST(synth, first_moe_layer_of_glm_flash_is_left_in_bf16) {
  temp_folder where;
  make(where, small("glm-4.7-flash"));
  folder const files = folder::open(where.file("made"));
  resolved_checkpoint const resolved = checkpoint::resolve(files);
  ASSERT_EQ(resolved.layers.size(), 3U);
  EXPECT_EQ(resolved.layers[0].dialect, "plain");
  EXPECT_EQ(resolved.layers[1].dialect, "D6");
  EXPECT_EQ(resolved.layers[2].dialect, "D6");
}

TEST(synth, mtp_layers_are_numbered_or_named_as_the_model_does) {
  for (std::string const like : {"deepseek-v3", "glm-4.5", "qwen3.5", "deepseek-v4-flash"}) {
    temp_folder where;
    synth_options options = small(like);
    options.mtp = true;
    make(where, options);
    folder const files = folder::open(where.file("made"));
    resolved_checkpoint const resolved = checkpoint::resolve(files);
    EXPECT_TRUE(resolved.sound()) << all_texts(resolved);
    EXPECT_EQ(resolved.found.count(finding_level::warning), 0) << all_texts(resolved);
    ASSERT_FALSE(resolved.layers.empty());
    EXPECT_TRUE(resolved.layers.back().mtp) << like;
  }
}

TEST(synth, plain_sibling_has_no_declaration_and_no_scale) {
  temp_folder where;
  synth_report const report = make(where, small("glm-4.7-flash", "plain"));
  EXPECT_THAT(report.dialects, testing::ElementsAre("plain"));
  folder const files = folder::open(where.file("made"));
  EXPECT_EQ(files.config()->find("quantization_config"), nullptr);
  EXPECT_EQ(checkpoint::resolve(files).scales_found, 0);
}

TEST(synth, small_models_keep_ragged_edges) {
  temp_folder where;
  synth_options options = small("gpt-oss");
  options.scale_down = 8;
  synth_report const report = make(where, options);
  EXPECT_NE(report.inter % 128, 0);  // 2880 = 22.5 * 128
  EXPECT_EQ(report.inter % 32, 0);
}

TEST(synth, one_file_needs_no_index) {
  temp_folder where;
  synth_options options = small("mixtral");
  options.shard_bytes = index_t{1} << 40;
  EXPECT_EQ(make(where, options).shards, 1);
  EXPECT_TRUE(std::filesystem::exists(where.file("made/model.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(where.file("made/model.safetensors.index.json")));
  EXPECT_TRUE(checkpoint::resolve(folder::open(where.file("made"))).sound());
}

TEST(synth, refuses_what_it_cannot_make) {
  temp_folder where;
  auto const refused = [&](synth_options const& options) -> std::string {
    try {
      make(where, options);
    } catch (error const& e) {
      EXPECT_EQ(e.code(), errc::invalid_argument);
      return e.what();
    }
    return "made";
  };
  EXPECT_THAT(refused(small("gpt-5")), HasSubstr("'gpt-5'"));
  EXPECT_THAT(refused(small("", "D99")), HasSubstr("'D99'"));
  EXPECT_THAT(refused(small("gpt-oss", "D13")), HasSubstr("gpt-oss cannot be written in D13"));
  EXPECT_THAT(refused(small("qwen3-30b", "D31")), HasSubstr("read as D8, never as D31"));
  synth_options options = small("mixtral");
  options.mtp = true;
  EXPECT_THAT(refused(options), HasSubstr("has no MTP layer"));
  options = small("mixtral");
  options.fault = "gremlins";
  EXPECT_THAT(refused(options), HasSubstr("'gremlins'"));
  options = small("kimi-k2-thinking");
  options.fault = "nan-code";
  EXPECT_THAT(refused(options), HasSubstr("never NaN"));
  options = small("deepseek-v3");
  options.layers = 1;
  EXPECT_THAT(refused(options), HasSubstr("layers is 1"));
  EXPECT_FALSE(std::filesystem::exists(where.file("made")));
  where.write("config.json", "{}");
  EXPECT_THROW(synthesize(where.path().string(), small("mixtral"), cpu_stream()), error);
  EXPECT_EQ(where.count(), 1U);
}

TEST(synth, stops_when_the_report_throws_and_leaves_no_checkpoint) {
  temp_folder where;
  auto const stop = [](index_t, index_t) { throw std::runtime_error("enough"); };
  EXPECT_THROW(synthesize(where.file("made"), small("mixtral"), cpu_stream(), stop),
               std::runtime_error);
  EXPECT_TRUE(files_of(where.file("made")).empty());
}

// ---- faults ------------------------------------------------------------------------------------

/// The dialects that a kind of fault is planted in here.
std::vector<std::string> dialects_for(std::string const& kind) {
  if (kind == "uneven-scale") return {"D2", "D3"};
  if (kind == "nan-code") return {"D1", "D6", "D10", "D17"};
  if (kind == "zero-scale" || kind == "negative-scale") return {"D1", "D8", "D13", "D23"};
  if (kind == "wrong-block-size") return {"D1", "D8", "D10", "D13", "D19", "D27"};
  if (kind == "missing-expert") return {"D1", "D6", "D13", "D18", "D29"};
  if (kind == "zero-hole") return {"D1", "D6", "D13"};
  if (kind == "missing-shared-expert") return {"D1", "D4", "D6", "D13", "D29"};
  return {"D1", "D4", "D6", "D13", "D14", "D16", "D17", "D18", "D24", "D28", "D29"};
}

class every_fault : public testing::TestWithParam<synth_fault> {};

TEST_P(every_fault, is_caught_or_is_one_of_values) {
  static std::map<std::string, std::string> const rules = {
      {"dropped-scale", "missing-scale"},     {"orphan-scale", "orphan-scale"},
      {"duplicate-scale", "duplicate-scale"}, {"missing-expert", "missing-expert"},
      {"wrong-block-size", "bad-scale"},      {"wrong-scale-shape", "bad-scale"},
      {"missing-declaration", "no-dialect"}};
  for (std::string const& dialect : dialects_for(GetParam().kind)) {
    temp_folder where;
    synth_options options = small("", dialect);
    options.fault = GetParam().kind;
    if (options.fault == "zero-hole") options.scale_down = 16;
    synth_report const report = make(where, options);
    EXPECT_EQ(report.fault, GetParam().text);
    EXPECT_FALSE(report.fault_tensor.empty());
    std::string opening = "opened";
    try {
      folder const files = folder::open(where.file("made"));
      resolved_checkpoint const resolved = checkpoint::resolve(files);
      EXPECT_EQ(resolved.sound(), GetParam().value) << dialect << "\n" << all_texts(resolved);
      if (rules.contains(GetParam().kind)) {
        EXPECT_GE(resolved.found.count(rules.at(GetParam().kind)), 1) << all_texts(resolved);
      }
    } catch (error const& e) {
      opening = e.what();
      EXPECT_FALSE(GetParam().value) << opening;
      EXPECT_FALSE(rules.contains(GetParam().kind)) << opening;
    }
    bool const of_files = !GetParam().value && !rules.contains(GetParam().kind);
    EXPECT_EQ(opening != "opened", of_files) << dialect << ": " << opening;
  }
}

INSTANTIATE_TEST_SUITE_P(synth, every_fault, testing::ValuesIn(synth_faults()),
                         [](auto const& entry) {
                           std::string name = entry.param.kind;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(synth, faults_of_values_change_what_they_say) {
  auto const scales = [](std::string const& fault) {
    temp_folder where;
    synth_options options = small("deepseek-v3.1");
    options.fault = fault;
    make(where, options);
    folder const files = folder::open(where.file("made"));
    resolved_checkpoint const resolved = checkpoint::resolve(files);
    std::vector<float> all;
    for (auto const& layer : resolved.layers) {
      auto const up = scales_of(files, layer.up);
      all.insert(all.end(), up.begin(), up.end());
    }
    return all;
  };
  auto const count = [](std::vector<float> const& all, auto const& is) {
    return std::count_if(all.begin(), all.end(), is);
  };
  auto const good = scales("");
  EXPECT_EQ(count(scales("zero-scale"), [](float s) { return s == 0.0F; }), 1);
  EXPECT_EQ(count(scales("negative-scale"), [](float s) { return s < 0.0F; }), 1);
  EXPECT_EQ(count(scales("nan-scale"), [](float s) { return std::isnan(s); }), 1);
  EXPECT_EQ(count(scales("uneven-scale"),
                  [](float s) {
                    int exponent = 0;
                    return std::frexp(s, &exponent) != 0.5F;
                  }),
            1);
  EXPECT_EQ(count(scales("reciprocal-scale"), [](float s) { return s > 1.0F; }),
            static_cast<std::ptrdiff_t>(good.size()));
}

}  // namespace
}  // namespace moe64::test
