// 2,000 random problems on the GPU against the oracle. A failure prints the problem line, which
// `moe64 verify` takes; the name of the test has its seeds.
#include "support/random.hpp"

#include "cases/problem_case.hpp"
#include "moe64/error.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moe64 {
namespace {

constexpr std::uint64_t problems = 2000;
constexpr std::uint64_t problems_per_test = 50;
/// Multiply-adds of the oracle per problem; the rest is sampled.
constexpr double budget = 2e6;

/// Draws the words of a line, each from its own part of the seed.
class line_source {
 public:
  explicit line_source(std::uint64_t seed) : random_(seed) {}

  std::string one_of(std::vector<std::string> const& words) {
    return words[static_cast<std::size_t>(random_.below(next_++, std::ssize(words)))];
  }
  /// Mostly small; every tenth up to `most`.
  std::string size(index_t least, index_t usual, index_t most, index_t step = 1) {
    index_t const high = random_.chance(next_++, 0.1) ? most : usual;
    return std::to_string(random_.between(next_++, least, std::max(high / step, least)) * step);
  }
  bool chance(double p) { return random_.chance(next_++, p); }

 private:
  test::random_source random_;
  index_t next_ = 0;
};

std::string random_line(std::uint64_t seed) {
  line_source draw(seed);
  std::string line = "device=cuda:0 seed=" + std::to_string(seed);
  std::string const op =
      draw.one_of({"layer", "layer", "layer", "quantize", "dequantize", "route", "plan", "gather",
                   "combine", "grouped_gemm", "grouped_gemm", "grouped_gemm_wgrad", "activate"});
  line += " op=" + op;
  bool const moves = op == "plan" || op == "route" || op == "gather" || op == "combine";
  line += " tokens=" + draw.size(1, 40, moves ? 4000 : 500);
  index_t const step = draw.chance(0.5) ? 16 : 1;  // tensor cores want rows on 16 bytes
  line += " hidden=" + draw.size(1, 200, 1400, step) + " inter=" + draw.size(1, 150, 900, step);
  std::string const top_k = draw.size(1, 4, 9);
  std::string const experts = draw.size(10, 20, moves ? 700 : 60);
  line += " top_k=" + top_k + " experts=" + experts;
  line += " io=" + draw.one_of({"bf16", "bf16", "f16", "f32"});
  line += " act=" + draw.one_of({"silu_glu", "gelu_glu", "gelu_tanh_glu", "gptoss_glu",
                                 "clamped_silu_glu", "step_glu", "silu", "gelu", "relu2"});
  std::string const weight =
      op == "quantize"             ? draw.one_of({"e4m3", "e5m2", "int8", "int4", "mxfp4", "nvfp4"})
      : op == "grouped_gemm_wgrad" ? draw.one_of({"f32", "bf16", "f16"})
                                   : draw.one_of({"e4m3", "e4m3", "e5m2", "int8", "int4", "mxfp4",
                                                  "nvfp4", "f32", "bf16", "bf16", "f16"});
  line += " weight=" + weight;
  if (weight == "e4m3" || weight == "e5m2" || weight == "int8") {
    line += " scale=" + draw.one_of({"block:128x128", "block:128x128", "row", "tensor", "group:32",
                                     "group:128", "block:32x64"});
    if (draw.chance(0.2)) line += " scale_dtype=" + draw.one_of({"bf16", "f16", "e8m0"});
    bool const multiplies = op == "layer" || op == "grouped_gemm";
    bool const has_a_mode = multiplies || op == "gather" || op == "combine";
    if (has_a_mode && draw.chance(0.3)) line += " mode=w8a8";
  }
  if (weight == "int4") line += " scale=" + draw.one_of({"group:32", "group:128", "row"});
  line += " layout=" + draw.one_of({"concatenated", "interleaved"});
  line += " routing=" + draw.one_of({"uniform", "zipf", "one_expert", "sentinel:0.3"});
  line += " weight_on=" + draw.one_of({"output", "input"});
  if (draw.chance(0.3)) line += " bias=1";
  if (draw.chance(0.3)) line += " lora=" + draw.size(1, 16, 64);
  if (draw.chance(0.5)) line += " backward=1";
  return line;
}

class random_problem : public testing::TestWithParam<std::uint64_t> {};

TEST_P(random_problem, is_within_its_bounds) {
  int run_count = 0;
  for (std::uint64_t seed = GetParam(); seed < GetParam() + problems_per_test; ++seed) {
    // What has no meaning, such as codes with a gradient, is drawn again.
    for (std::uint64_t draw = 0; draw < 20; ++draw) {
      std::string const line = random_line(seed + draw * 1'000'000);
      SCOPED_TRACE(line);
      try {
        problem const p = parse_problem(line);
        cases::problem_case c(p);
        cases::queue const queue(p.device, nullptr);
        run(c, queue.get());
        auto const found = c.verify(queue.get(), budget);
        EXPECT_TRUE(found.ok()) << found.message();
        ++run_count;
        break;
      } catch (error const& e) {
        bool const meaningless =
            e.code() == errc::unsupported || e.code() == errc::invalid_argument;
        ASSERT_TRUE(meaningless) << e.what();
      }
    }
  }
  EXPECT_EQ(run_count, static_cast<int>(problems_per_test));
}

INSTANTIATE_TEST_SUITE_P(seeds, random_problem,
                         testing::Range(std::uint64_t{1}, problems, problems_per_test),
                         [](auto const& given) {
                           return std::to_string(given.param) + "_to_" +
                                  std::to_string(given.param + problems_per_test - 1);
                         });

}  // namespace
}  // namespace moe64
