// Sound checkpoints have no finding: every family that synth makes, and models whose parts are as
// different as those of trained ones. docs/checkpoints-check.md states the result.
#include "support/edited_checkpoint.hpp"
#include "support/random.hpp"
#include "support/stored_checkpoint.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>

namespace moe64::test {
namespace {

synth_options small(std::string const& like, std::uint64_t seed) {
  synth_options options;
  options.like = like;
  options.scale_down = 64;
  options.layers = 6;
  options.seed = seed;
  return options;
}

class every_healthy_model : public testing::TestWithParam<synth_model> {};

TEST_P(every_healthy_model, has_no_finding) {
  for (std::uint64_t const seed : {1U, 2U, 3U}) {
    check_report const report = edited_checkpoint(small(GetParam().like, seed)).check();
    for (finding const& found : report.findings) {
      EXPECT_EQ(found.rule, "orientation-not-inferable") << found.text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(check, every_healthy_model, testing::ValuesIn(synth_models()),
                         [](auto const& entry) {
                           std::string name = entry.param.like;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

TEST(check_healthy, mtp_layers_and_plain_siblings_have_no_finding) {
  for (std::string const like : {"deepseek-v3", "glm-4.5", "qwen3.5", "deepseek-v4-flash"}) {
    synth_options options = small(like, 1);
    options.mtp = true;
    EXPECT_EQ(texts_of(edited_checkpoint(options).check()), "") << like;
  }
  synth_options plain = small("qwen3-30b", 1);
  plain.dialect = "plain";
  EXPECT_EQ(texts_of(edited_checkpoint(plain).check()), "");
}

/// Layers, projections and experts as far apart as trained ones are: up to a factor of 2.2 each
/// way, and outliers among the rows.
TEST(check_healthy, random_models_with_uneven_layers_have_no_finding) {
  index_t findings = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    edited_checkpoint made(small(seed % 2 == 0 ? "deepseek-v3" : "qwen3-30b", seed));
    random_source const draw(seed);
    index_t next = 0;
    made.edit_numbers([&](std::string const& name) { return name.ends_with("weight_scale_inv"); },
                      [&](index_t i, double scale) {
                        if (i == 0) ++next;
                        auto const drawn =
                            static_cast<double>(draw.between(next, -100, 100)) / 100.0;
                        return scale * std::exp2(drawn * 0.5) * (i % 7 == 0 ? 1.5 : 1.0);
                      });
    for (index_t layer = 0; layer < 6; ++layer) {
      double const factor =
          std::exp2(static_cast<double>(draw.between(1000 + layer, -100, 100)) / 100.0);
      made.edit_numbers(
          [&](std::string const& name) {
            bool const scale = name.ends_with("weight_scale_inv");
            bool const matrix =
                name.ends_with("_proj.weight") && name.find(".experts.") == std::string::npos;
            return is_of_layer(name, layer) && (scale || matrix);
          },
          [&](index_t, double number) { return number * factor; });
    }
    check_report const report = made.check();
    findings += std::ssize(report.findings);
    EXPECT_EQ(texts_of(report), "") << seed;
  }
  EXPECT_EQ(findings, 0);
}

/// What real checkpoints have and nobody shall be alarmed by: notes at most.
TEST(check_healthy, oddities_of_trained_models_are_notes) {
  synth_options options = small("gpt-oss", 1);
  options.scale_down = 16;
  edited_checkpoint biases(options);
  biases.edit([](std::string const& name) { return name.ends_with("k_proj.bias"); },
              [](std::vector<std::byte>& bytes) { std::ranges::fill(bytes, std::byte{0}); });
  check_report const zero_biases = biases.check();
  EXPECT_EQ(zero_biases.count(finding_level::error), 0) << texts_of(zero_biases);
  EXPECT_EQ(zero_biases.count(finding_level::warning), 0) << texts_of(zero_biases);

  edited_checkpoint made(small("deepseek-v3", 1));
  made.edit([](std::string const& name) { return name == "model.embed_tokens.weight"; },
            [](std::vector<std::byte>& bytes) {  // rows that fill up the vocabulary
              std::size_t const row = 112 * 2;
              std::fill(bytes.end() - static_cast<std::ptrdiff_t>(40 * row), bytes.end(),
                        std::byte{0});
            });
  made.edit_numbers(  // an expert that no token was ever sent to
      [](std::string const& name) {
        return name.find("layers.3.mlp.experts.2.") != std::string::npos &&
               name.ends_with("scale_inv");
      },
      [](index_t, double scale) { return scale / 1000.0; });
  check_report const report = made.check();
  EXPECT_EQ(report.count(finding_level::error), 0) << texts_of(report);
  EXPECT_EQ(report.count(finding_level::warning), 0) << texts_of(report);
  EXPECT_EQ(count_of(report, "zero-rows"), 1) << texts_of(report);
  EXPECT_EQ(count_of(report, "small-expert"), 3) << texts_of(report);
}

/// Packed rows of int4 that fill up a matrix are zero bytes, and not zeros.
TEST(check_healthy, rows_that_fill_up_an_int4_matrix_are_a_warning) {
  synth_options options = small("kimi-k2-thinking", 1);
  options.scale_down = 16;
  edited_checkpoint made(options);
  made.edit(
      [](std::string const& name) {
        return name.ends_with("layers.3.mlp.experts.1.up_proj.weight_packed");
      },
      [](std::vector<std::byte>& bytes) {  // 128 rows: the last 32
        std::fill(bytes.end() - std::ssize(bytes) / 4, bytes.end(), std::byte{0});
      });
  check_report const report = made.check();
  EXPECT_EQ(report.count(finding_level::error), 0) << texts_of(report);
  EXPECT_EQ(count_of(report, "zero-rows"), 1) << texts_of(report);
}

/// An expert of which weight decay has left a few numbers is no hole in the file.
TEST(check_healthy, an_expert_that_died_is_a_warning) {
  synth_options options = small("deepseek-v3", 1);
  options.scale_down = 16;
  edited_checkpoint made(options);
  made.edit(
      [](std::string const& name) {
        return name.ends_with("layers.3.mlp.experts.1.up_proj.weight");
      },
      [](std::vector<std::byte>& bytes) {
        for (std::size_t i = 0; i < bytes.size(); ++i) {
          if (i % 9001 != 17) bytes[i] = std::byte{0};
        }
      });
  check_report const report = made.check();
  EXPECT_EQ(report.count(finding_level::error), 0) << texts_of(report);
  EXPECT_EQ(count_of(report, "mostly-zero"), 1) << texts_of(report);
}

/// Weights that were cast to FP8 as they are have scales of 1, and are no fault.
TEST(check_healthy, a_cast_without_scaling_is_a_warning) {
  edited_checkpoint made(small("qwen3-30b", 1));
  made.edit([](std::string const& name) { return name.ends_with(".weight_scale_inv"); },
            [](std::vector<std::byte>& bytes) {  // BF16
              for (std::size_t i = 0; i < bytes.size(); ++i) {
                bytes[i] = i % 2 == 0 ? std::byte{0x80} : std::byte{0x3f};
              }
            });
  made.edit(
      [](std::string const& name) {
        return name.find(".experts.") != std::string::npos && name.ends_with(".weight");
      },
      [](std::vector<std::byte>& bytes) {  // 2^-13 of what they were: below 0.06
        for (std::byte& code : bytes) {
          auto const sign = code & std::byte{0x80};
          code = sign | static_cast<std::byte>((std::to_integer<unsigned>(code) & 0x7fU) >> 3U);
        }
      });
  check_report const report = made.check();
  EXPECT_EQ(report.count(finding_level::error), 0) << texts_of(report);
  EXPECT_GT(count_of(report, "unit-scale"), 0) << texts_of(report);
}

}  // namespace
}  // namespace moe64::test
