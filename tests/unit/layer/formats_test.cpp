// The layer as problem lines: every weight format and granularity, io type, activation, mode and
// width, each with every gradient, against the oracle within the bounds of cases/tolerance.hpp, and
// bit by bit on integers.
#include "cases/problem_case.hpp"
#include "cpu/runtime/features.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace moe64 {
namespace {

/// Multiply-adds of the oracle per problem; the rest is sampled.
constexpr double budget = 6e5;

void expect_ok_as_forced(std::string const& line, cases::data_mode data) {
  SCOPED_TRACE(line + (data == cases::data_mode::exact ? " (exact)" : ""));
  cases::case_options options;
  options.data = data;
  problem p = parse_problem(line);
  if constexpr (test::on_cuda) p.device = device::cuda(0);
  cases::problem_case c(p, options);
  cases::queue const queue(p.device, nullptr);
  run(c, queue.get());
  auto const found = c.verify(queue.get(), budget);
  EXPECT_TRUE(found.ok()) << found.message();
  EXPECT_GT(found.compared, 0);
  EXPECT_GE(found.outputs.size(), 3U);  // y, dx, d_weights
}

/// One of the implementations of the grouped GEMMs that take every call, by the letters of the
/// line.
std::string portable_for(std::string const& line) {
  if constexpr (test::on_cuda) return "reference";
  std::vector<std::string> names{"scalar", "reference"};
  if (cpu::has_avx2()) names.emplace_back("avx2");
  if (cpu::has_avx512()) names.emplace_back("avx512");
  return names[std::hash<std::string>{}(line) % names.size()];
}

/// The best implementations, and one that takes every call.
void expect_ok(std::string const& line, cases::data_mode data) {
  expect_ok_as_forced(line, data);
  expect_ok_as_forced(line + " impl=" + portable_for(line), data);
}

void expect_random(std::string const& line) { expect_ok(line, cases::data_mode::random); }
void expect_exact(std::string const& line) { expect_ok(line, cases::data_mode::exact); }

std::string const size = "backward=1 tokens=9 hidden=136 inter=140 experts=5 top_k=2 ";

struct format {
  std::string name, keys;
};

std::vector<format> every_format() {
  std::vector<format> all{{"f32", "weight=f32"}, {"bf16", "weight=bf16"}, {"f16", "weight=f16"}};
  for (std::string const type : {"e4m3", "e5m2", "int8"}) {
    all.push_back({type + "_tensor", "weight=" + type + " scale=tensor"});
    all.push_back({type + "_row", "weight=" + type + " scale=row"});
    all.push_back({type + "_block128", "weight=" + type + " scale=block:128x128"});
    all.push_back({type + "_block3x5", "weight=" + type + " scale=block:3x5"});
    all.push_back({type + "_group32", "weight=" + type + " scale=group:32"});
    for (std::string const scale : {"bf16", "f16", "e8m0", "e4m3"}) {
      all.push_back(
          {type + "_block_" + scale, "weight=" + type + " scale=block:64x32 scale_dtype=" + scale});
    }
  }
  for (std::string const scale : {"row", "group:32", "group:7", "block:16x16", "tensor"}) {
    std::string name = "int4_" + scale;
    for (char& letter : name) letter = letter == ':' ? '_' : letter;
    all.push_back({name, "weight=int4 scale=" + scale});
  }
  all.push_back({"int4_f16", "weight=int4 scale=group:32 scale_dtype=f16"});
  all.push_back({"mxfp4", "weight=mxfp4"});
  all.push_back({"nvfp4", "weight=nvfp4"});
  return all;
}

class layer_format : public testing::TestWithParam<format> {};

TEST_P(layer_format, within_bounds_in_every_io_type) {
  for (std::string const io : {" io=f32", " io=bf16", " io=f16"}) {
    expect_random(size + GetParam().keys + io);
  }
  expect_random(size + GetParam().keys + " layout=interleaved bias=1 lora=3 routing=zipf");
}

TEST_P(layer_format, exact_on_integers) {
  std::string const line = size + GetParam().keys + " io=f32 act=relu2";
  expect_exact(line);
  expect_exact(line + " bias=1 lora=3 weight_on=input routing=sentinel:0.3 seed=2");
}

INSTANTIATE_TEST_SUITE_P(every, layer_format, testing::ValuesIn(every_format()),
                         [](auto const& given) { return given.param.name; });

TEST(layer_formats, every_activation_in_every_io_type) {
  for (std::string const act : {"silu_glu", "gelu_glu", "gelu_tanh_glu", "gptoss_glu",
                                "clamped_silu_glu", "step_glu", "silu", "gelu", "relu2"}) {
    for (std::string const io : {" io=f32", " io=bf16", " io=f16"}) {
      expect_random(size + "weight=e4m3 bias=1 act=" + act + io);
    }
  }
}

TEST(layer_formats, w8a8_quantises_activations_as_the_oracle_does) {
  for (std::string const type : {"e4m3", "e5m2", "int8"}) {
    for (std::string const scale : {"tensor", "row", "block:128x128", "group:32"}) {
      std::string const line = size + "mode=w8a8 weight=" + type + " scale=" + scale;
      expect_random(line + " io=bf16");
      expect_random(line + " io=f32 weight_on=input lora=2 bias=1");
    }
  }
}

TEST(layer_formats, every_width_and_rank) {
  for (std::string const hidden : {"1", "17", "320"}) {
    for (std::string const inter : {"1", "192", "704"}) {
      std::string const widths = "backward=1 tokens=5 experts=3 top_k=2 hidden=" + hidden +
                                 " inter=" + inter + " io=f32 act=relu2 lora=1 bias=1";
      expect_exact(widths + " weight=f32");
      expect_exact(widths + " weight=e4m3 scale=block:128x128");
      expect_exact(widths + " weight=int4 scale=group:32");
      expect_exact(widths + " weight=mxfp4");
    }
  }
  for (std::string const rank : {"1", "3", "16"}) {
    expect_random("backward=1 tokens=4 experts=3 top_k=2 hidden=320 inter=192 weight=e4m3 lora=" +
                  rank);
  }
}

TEST(layer_formats, every_routing_and_placement) {
  for (std::string const routing : {"uniform", "zipf", "one_expert", "sentinel:0.5"}) {
    for (std::string const on : {"output", "input"}) {
      for (std::string const seed : {"1", "2"}) {  // even seeds have int32 ids
        std::string const line =
            "backward=1 tokens=33 hidden=40 inter=48 experts=7 top_k=3 seed=" + seed +
            " weight_on=" + on + " routing=" + routing;
        expect_random(line + " weight=bf16 io=bf16");
        expect_exact(line + " weight=e4m3 scale=block:16x16 io=f32 act=relu2");
      }
    }
  }
}

}  // namespace
}  // namespace moe64
