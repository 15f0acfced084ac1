#include "moe64/problem.hpp"

#include "support/error_matcher.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::random_source;

bool equal(problem const& a, problem const& b) {
  return a.op == b.op && a.tokens == b.tokens && a.hidden == b.hidden && a.inter == b.inter &&
         a.experts == b.experts && a.top_k == b.top_k && a.weight == b.weight &&
         a.scale == b.scale && a.scale_dtype == b.scale_dtype && a.act.kind == b.act.kind &&
         a.mode == b.mode && a.scheme == b.scheme && a.io == b.io && a.layout == b.layout &&
         a.routing == b.routing && a.sentinel_share == b.sentinel_share &&
         a.weight_on == b.weight_on && a.lora == b.lora && a.bias == b.bias &&
         a.backward == b.backward && a.quantized == b.quantized && a.device == b.device &&
         a.seed == b.seed && a.impl == b.impl;
}

problem random_problem(std::uint64_t seed) {
  random_source const random(seed);
  index_t n = 0;
  auto const pick = [&](index_t count) { return random.below(n++, count); };
  problem p;
  p.op = static_cast<operation>(pick(10));
  p.tokens = pick(2) == 0 ? pick(5) : static_cast<index_t>(random.bits(n++) >> 1);
  p.hidden = 1 + pick(5000);
  p.inter = 1 + pick(5000);
  p.experts = 1 + pick(500);
  p.top_k = 1 + pick(9);
  p.weight = static_cast<weight_format>(pick(9));
  p.scale_dtype = std::vector{dtype::f32, dtype::bf16, dtype::f16, dtype::e8m0,
                              dtype::e4m3}[static_cast<std::size_t>(pick(5))];
  p.scale = std::vector{granularity::tensor(), granularity::row(),
                        granularity::block(1 + pick(200), 1 + pick(200)),
                        granularity::group(1 + pick(200))}[static_cast<std::size_t>(pick(4))];
  if (p.weight <= weight_format::f16) {
    p.scale = granularity::none();
  } else if (p.weight == weight_format::mxfp4) {
    p.scale = granularity::group(32);
    p.scale_dtype = dtype::e8m0;
  } else if (p.weight == weight_format::nvfp4) {
    p.scale = granularity::group(16);
    p.scale_dtype = dtype::e4m3;
  }
  p.act.kind = static_cast<activation>(pick(static_cast<int>(last_activation) + 1));
  p.mode = static_cast<compute_mode>(pick(4));
  p.scheme = static_cast<activation_scheme>(pick(2));
  p.io = static_cast<dtype>(pick(3));
  p.layout = static_cast<gate_up_layout>(pick(2));
  p.routing = static_cast<routing_kind>(pick(4));
  if (p.routing == routing_kind::sentinel) p.sentinel_share = random.uniform(n++, 0.0, 1.0);
  p.weight_on = static_cast<weight_placement>(pick(2));
  p.lora = pick(3) * 8;
  p.bias = pick(2) == 1;
  p.quantized = pick(2) == 1;
  p.backward = pick(2) == 1;
  if (pick(2) == 1) p.device = device::cuda(static_cast<std::int16_t>(pick(32768)));
  p.seed = pick(2) == 0 ? 1 : random.bits(n++);
  if (pick(3) == 0) p.impl = "reference";
  return p;
}

TEST(problem_line, printing_and_parsing_are_inverse) {
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    problem const p = random_problem(seed);
    std::string const line = to_string(p);
    ASSERT_TRUE(equal(parse_problem(line), p)) << line;
    ASSERT_EQ(to_string(parse_problem(line)), line);
  }
}

TEST(problem_line, defaults_are_not_printed) {
  EXPECT_EQ(to_string(problem{}), "");
  EXPECT_TRUE(equal(parse_problem(""), problem{}));
  EXPECT_TRUE(equal(parse_problem("  \t\r\n "), problem{}));
  EXPECT_EQ(to_string(parse_problem("tokens=64")), "");
}

TEST(problem_line, every_key_is_read) {
  problem const p = parse_problem(
      "op=gather tokens=0 hidden=7 inter=5 experts=3 top_k=2 weight=int8 scale=block:3x5 "
      "scale_dtype=bf16 act=gptoss_glu mode=w8a8 scheme=dynamic io=f16 layout=interleaved "
      "routing=sentinel:0.25 "
      "weight_on=input lora=4 bias=1 backward=1 quantized=1 device=cuda:2 seed=99 impl=reference");
  EXPECT_EQ(p.op, operation::gather);
  EXPECT_EQ(p.tokens, 0);
  EXPECT_EQ(p.hidden, 7);
  EXPECT_EQ(p.inter, 5);
  EXPECT_EQ(p.experts, 3);
  EXPECT_EQ(p.top_k, 2);
  EXPECT_EQ(p.weight, weight_format::int8);
  EXPECT_EQ(p.scale, granularity::block(3, 5));
  EXPECT_EQ(p.scale_dtype, dtype::bf16);
  EXPECT_EQ(p.act.kind, activation::gptoss_glu);
  EXPECT_EQ(p.mode, compute_mode::w8a8);
  EXPECT_EQ(p.scheme, activation_scheme::dynamic);
  EXPECT_EQ(p.io, dtype::f16);
  EXPECT_EQ(p.layout, gate_up_layout::interleaved);
  EXPECT_EQ(p.routing, routing_kind::sentinel);
  EXPECT_EQ(p.sentinel_share, 0.25);
  EXPECT_EQ(p.weight_on, weight_placement::input);
  EXPECT_EQ(p.lora, 4);
  EXPECT_TRUE(p.bias);
  EXPECT_TRUE(p.backward);
  EXPECT_EQ(p.device, device::cuda(2));
  EXPECT_EQ(p.seed, 99U);
  EXPECT_EQ(p.impl, "reference");
}

TEST(problem_line, formats_bring_their_scale) {
  EXPECT_EQ(parse_problem("weight=mxfp4").scale, granularity::group(32));
  EXPECT_EQ(parse_problem("weight=mxfp4").scale_dtype, dtype::e8m0);
  EXPECT_EQ(parse_problem("weight=nvfp4").scale, granularity::group(16));
  EXPECT_EQ(parse_problem("weight=nvfp4").scale_dtype, dtype::e4m3);
  EXPECT_EQ(parse_problem("weight=bf16").scale, granularity::none());
  // Wherever the weight stands, and whatever blank is before it.
  EXPECT_EQ(parse_problem("tokens=1\tweight=bf16").scale, granularity::none());
  EXPECT_EQ(parse_problem("tokens=1\nweight=bf16").scale, granularity::none());
  EXPECT_EQ(parse_problem("\r\nweight=bf16").scale, granularity::none());
  EXPECT_EQ(parse_problem("scale=group:64 weight=int4").scale, granularity::group(64));
  EXPECT_EQ(value_type(weight_format::nvfp4), dtype::fp4);
  EXPECT_EQ(value_type(weight_format::e5m2), dtype::e5m2);
  EXPECT_MOE64_ERROR(parse_problem("weight=bf16 scale=row"), errc::invalid_argument, "weight=bf16",
                     "scale=row");
  EXPECT_MOE64_ERROR(parse_problem("weight=mxfp4 scale=group:16"), errc::invalid_argument,
                     "group:16");
  EXPECT_MOE64_ERROR(parse_problem("weight=nvfp4 scale_dtype=f32"), errc::invalid_argument, "f32");
  EXPECT_MOE64_ERROR(parse_problem("weight=e4m3 scale=none"), errc::missing_scale, "e4m3");
}

TEST(problem_line, wrong_words_are_named) {
  EXPECT_MOE64_ERROR(parse_problem("tokens=1 tokens=1"), errc::invalid_argument, "tokens", "twice");
  EXPECT_MOE64_ERROR(parse_problem("weight=bf16 weight=f16"), errc::invalid_argument, "twice");
  EXPECT_MOE64_ERROR(parse_problem("token=1"), errc::invalid_argument, "token=1", "tokens");
  EXPECT_MOE64_ERROR(parse_problem("tokens"), errc::invalid_argument, "tokens");
  EXPECT_MOE64_ERROR(parse_problem("=3"), errc::invalid_argument, "=3");
  EXPECT_MOE64_ERROR(parse_problem("Tokens=3"), errc::invalid_argument, "Tokens");
  struct wrong {
    char const* key;
    char const* value;
  };
  for (wrong const& w : std::vector<wrong>{
           {"op", "gemm"},
           {"op", ""},
           {"tokens", "-1"},
           {"tokens", "1.5"},
           {"tokens", "1e3"},
           {"tokens", ""},
           {"tokens", "0x10"},
           {"tokens", "+1"},
           {"tokens", "9223372036854775808"},
           {"hidden", "0"},
           {"inter", "0"},
           {"experts", "0"},
           {"top_k", "0"},
           {"top_k", "two"},
           {"weight", "fp8"},
           {"scale", "block"},
           {"scale", "group:0"},
           {"scale_dtype", "int8"},
           {"scale_dtype", "x"},
           {"act", "swiglu"},
           {"mode", "automatic"},
           {"io", "e4m3"},
           {"layout", "0"},
           {"routing", "sentinel"},
           {"routing", "random"},
           {"weight_on", "both"},
           {"lora", "-1"},
           {"bias", "2"},
           {"bias", "true"},
           {"backward", "yes"},
           {"device", "cuda"},
           {"device", "cuda:-1"},
           {"device", "cuda:32768"},
           {"device", "gpu"},
           {"seed", "-1"},
           {"seed", "18446744073709551616"},
       }) {
    std::string const line = std::string(w.key) + "=" + w.value;
    EXPECT_MOE64_ERROR(parse_problem(line), errc::invalid_argument, "[problem]", line);
  }
  for (char const* share : {"-0.1", "1.1", "nan", "inf", "x", ""}) {
    EXPECT_MOE64_ERROR(parse_problem(std::string("routing=sentinel:") + share),
                       errc::invalid_argument, "routing", "sentinel:SHARE");
  }
}

}  // namespace
}  // namespace moe64
