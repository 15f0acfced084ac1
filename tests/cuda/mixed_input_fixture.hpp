#pragma once

#include "support/gemm.hpp"
#include "support/gemm_call.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace moe64::test {

inline weight_spec const e4m3_blocks = {dtype::e4m3, granularity::block(128, 128)};

/// Average rows that lead to every size of tiles, and counts around their edges.
inline std::vector<std::vector<index_t>> const row_counts{
    {0, 1, 7, 8, 9, 33, 0}, {31, 0, 63, 1, 64, 65}, {127, 128, 129, 0, 289, 17}};

/// Mixed-input products on sm_90a, and the same products in other ways.
class mixed_input_fixture : public testing::Test {
 protected:
  [[nodiscard]] static target_stream where() { return target(); }
  [[nodiscard]] static char const* mixed(grouped_gemm_args const& args) {
    return bits(args.weights.type()) == 4 ? "sm90_w4a16" : "sm90_w8a16";
  }
  [[nodiscard]] static support answer(grouped_gemm_args args) {
    args.implementation = {};
    for (implementation_report const& report : explain(args, where())) {
      if (report.name == mixed(args)) return report.answer;
    }
    return support::no("there are no mixed-input kernels of sm_90a");
  }
  void SetUp() override {
    gemm_call const call(e4m3_blocks, {1, 128, 128}, {1}, dtype::bf16, content::integers, {});
    if (support const can = answer(call.args); !can) GTEST_SKIP() << can.reason();
  }
  [[nodiscard]] static std::vector<double> run(grouped_gemm_args args, char const* implementation) {
    test_tensor const y(args.y.type, {args.y.extent[0], args.y.extent[1]});
    args.y = y;
    args.implementation = implementation;
    grouped_gemm(args, where());
    return y.numbers();
  }
  static void expect_as_cpu(gemm_call const& call) {
    grouped_gemm_args args = call.args;
    test_tensor const expected(args.y.type, {args.y.extent[0], args.y.extent[1]});
    args.y = expected;
    grouped_gemm(args, cpu_stream());
    EXPECT_EQ(difference(run(args, mixed(args)), expected.numbers()), "");
  }
  /// The same by weights that have been decoded before.
  [[nodiscard]] static std::vector<double> by_decoded(gemm_call const& call,
                                                      char const* implementation) {
    weight_stack const& stack = call.args.weights;
    test_tensor decoded[2];
    for (int part = 0; part < stack.parts(); ++part) {
      decoded[part] =
          test_tensor(call.args.x.type(), {stack.experts(), stack.part_rows(), stack.cols()});
      dequantize({stack.part(part), decoded[part]}, cpu_stream());
    }
    auto const plain = [&](int part) { return quantized_view::plain(decoded[part]); };
    grouped_gemm_args args = call.args;
    args.weights = stack.parts() == 1 ? weight_stack::single(plain(0))
                                      : weight_stack::gate_up(plain(0), plain(1));
    return run(args, implementation);
  }
  static void expect_every_number_of_rows(weight_spec const& spec, index_t cols) {
    for (index_t const others : {0, 40, 100}) {
      for (index_t rows = 1; rows <= 600; rows += rows < 20 ? 1 : 13) {
        SCOPED_TRACE(rows);
        expect_as_cpu({spec, {1, 136, cols}, {rows, others}, dtype::bf16, content::integers, {}});
      }
    }
  }
  /// More stages, scales and tiles than rings have places, so that whoever runs ahead must wait.
  static void expect_rings_go_round(weight_spec const& spec, gemm_call::shape const& shape,
                                    bool transpose = false) {
    for (auto const& counts : std::vector<std::vector<index_t>>{{9, 1, 30, 8, 17, 2},
                                                                {60, 33, 47, 8, 64, 20},
                                                                {160, 33, 161, 8, 96, 240},
                                                                {300, 260, 137, 64, 272, 545}}) {
      gemm_call const call(spec, shape, counts, dtype::bf16, content::random,
                           {transpose, false, transpose ? 16 : 0});
      std::vector<double> const expected = run(call.args, "sm80_mma");
      for (int repeat = 0; repeat < 3; ++repeat) {
        EXPECT_EQ(difference(run(call.args, mixed(call.args)), expected), "");
      }
    }
  }
};

}  // namespace moe64::test
