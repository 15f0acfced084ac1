#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/implementations.hpp"
#include "support/routing.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::difference;
using test::for_each_implementation;
using test::target;
using test::test_tensor;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

struct wgrad_call {
  struct shape {
    int parts;
    index_t part_rows, cols;
  };
  shape s;
  std::vector<index_t> counts;
  test_tensor expert_begin, dy, x, d_weights[2], d_bias[2];
  grouped_gemm_wgrad_args args;

  wgrad_call(shape const& extents, std::vector<index_t> rows, dtype io, dtype out_type,
             bool integers, float scaling)
      : s(extents), counts(std::move(rows)) {
    index_t const experts = std::ssize(counts);
    index_t const live = std::accumulate(counts.begin(), counts.end(), index_t{0});
    expert_begin = test::make_expert_begin(counts);
    dy = test_tensor(io, {live + 2, s.parts * s.part_rows});
    x = test_tensor(io, {live + 2, s.cols});
    for (test_tensor* tensor : {&dy, &x}) {
      std::uint64_t const seed = tensor == &dy ? 1 : 2;
      integers ? tensor->fill_integers(seed, -4, 4) : tensor->fill_uniform(seed);
      for (index_t r = live; r < live + 2; ++r) {
        for (index_t c = 0; c < tensor->view().extent[1]; ++c) tensor->set(nan, r, c);
      }
    }
    args = {dy, x, expert_begin, scaling, s.parts, {}, {}};
    for (int part = 0; part < s.parts; ++part) {
      d_weights[part] = test_tensor(out_type, {experts, s.part_rows, s.cols});
      d_bias[part] = test_tensor(out_type, {experts, s.part_rows});
      args.d_weights[place(part)] = d_weights[part];
      args.d_bias[place(part)] = d_bias[part];
    }
  }

  struct sums {
    std::vector<double> weights, weight_sizes, bias, bias_sizes;
  };
  [[nodiscard]] sums expected(int part) const {
    sums result;
    index_t begin = 0;
    for (index_t const count : counts) {
      for (index_t n = 0; n < s.part_rows; ++n) {
        double bias = 0.0, bias_size = 0.0;
        for (index_t c = 0; c < s.cols; ++c) {
          double sum = 0.0, size = 0.0;
          for (index_t r = begin; r < begin + count; ++r) {
            double const term = dy.get(r, part * s.part_rows + n) * x.get(r, c);
            sum += term;
            size += std::fabs(term);
          }
          result.weights.push_back(double{args.scaling} * sum);
          result.weight_sizes.push_back(std::fabs(double{args.scaling}) * size);
        }
        for (index_t r = begin; r < begin + count; ++r) {
          bias += dy.get(r, part * s.part_rows + n);
          bias_size += std::fabs(dy.get(r, part * s.part_rows + n));
        }
        result.bias.push_back(bias);
        result.bias_sizes.push_back(bias_size);
      }
      begin += count;
    }
    return result;
  }
};

std::vector<double> rounded(std::vector<double> values, dtype type) {
  for (double& value : values) value = oracle::round_to(value, type);
  return values;
}

void expect_exact(wgrad_call const& call) {
  for_each_implementation(call.args, [&](grouped_gemm_wgrad_args const& args) {
    grouped_gemm_wgrad(args, target());
    for (int part = 0; part < call.s.parts; ++part) {
      auto const expected = call.expected(part);
      dtype const type = call.d_weights[part].view().type;
      EXPECT_EQ(difference(call.d_weights[part].numbers(), rounded(expected.weights, type)), "");
      EXPECT_EQ(difference(call.d_bias[part].numbers(), rounded(expected.bias, type)), "");
    }
  });
}

TEST(grouped_gemm_wgrad, exact_on_integers_and_zero_for_experts_without_rows) {
  for (dtype const io : float_types) {
    for (dtype const out : float_types) {
      for (int const parts : {1, 2}) {
        SCOPED_TRACE(std::string(name(io)) + " to " + std::string(name(out)));
        expect_exact({{parts, 19, 37}, {0, 5, 0, 34, 1, 0}, io, out, true, 2.0F});
      }
    }
  }
}

TEST(grouped_gemm_wgrad, exact_at_odd_sizes) {
  for (index_t const size : {1, 15, 16, 17, 127, 128, 129, 320, 513, 704}) {
    SCOPED_TRACE(size);
    expect_exact({{1, size, 20}, {3, 0, 9}, dtype::bf16, dtype::f32, true, 1.0F});
    expect_exact({{2, 18, size}, {3, 0, 9}, dtype::bf16, dtype::f32, true, 1.0F});
  }
  expect_exact(
      {{1, 17, 33}, {1, 7, 8, 9, 31, 32, 33, 127, 128, 129}, dtype::bf16, dtype::f32, true, 0.5F});
}

TEST(grouped_gemm_wgrad, random_numbers_within_the_bound_of_f32_sums) {
  for (dtype const io : float_types) {
    wgrad_call const call({2, 21, 40}, {50, 0, 3}, io, dtype::f32, false, 0.7F);
    grouped_gemm_wgrad(call.args, target());
    for (int part = 0; part < 2; ++part) {
      auto const expected = call.expected(part);
      auto const bound = [](std::vector<double> sizes) {
        // 50 products, 50 additions and the scaling.
        for (double& size : sizes) size = size * 52.0 * 0x1p-24 + 0x1p-149;
        return sizes;
      };
      EXPECT_EQ(difference(call.d_weights[part].numbers(), expected.weights,
                           bound(expected.weight_sizes)),
                "");
      EXPECT_EQ(difference(call.d_bias[part].numbers(), expected.bias, bound(expected.bias_sizes)),
                "");
    }
  }
}

TEST(grouped_gemm_wgrad, only_what_is_asked_for) {
  wgrad_call call({2, 5, 6}, {3, 2}, dtype::f32, dtype::f32, true, 1.0F);
  call.args.d_weights[0] = {};
  call.args.d_bias[1] = {};
  grouped_gemm_wgrad(call.args, target());
  EXPECT_EQ(difference(call.d_weights[1].numbers(), call.expected(1).weights), "");
  EXPECT_EQ(difference(call.d_bias[0].numbers(), call.expected(0).bias), "");
  EXPECT_TRUE(std::isnan(call.d_weights[0].get(0, 0, 0)));
  EXPECT_TRUE(std::isnan(call.d_bias[1].get(0, 0)));

  wgrad_call biases({2, 5, 6}, {3, 2}, dtype::f32, dtype::f32, true, 1.0F);
  biases.args.d_weights = {};
  biases.args.x = {};
  grouped_gemm_wgrad(biases.args, target());
  EXPECT_EQ(difference(biases.d_bias[1].numbers(), biases.expected(1).bias), "");
}

TEST(grouped_gemm_wgrad, the_scaling_leaves_the_bias_alone) {
  wgrad_call const call({1, 3, 4}, {2}, dtype::f32, dtype::f32, true, 8.0F);
  grouped_gemm_wgrad(call.args, target());
  EXPECT_EQ(call.d_bias[0].get(0, 1), call.dy.get(0, 1) + call.dy.get(1, 1));
}

TEST(grouped_gemm_wgrad, gate_and_up_may_share_one_interleaved_tensor) {
  wgrad_call call({2, 5, 6}, {3, 0}, dtype::bf16, dtype::f32, true, 1.0F);
  test_tensor const fused(dtype::f32, {2, 10, 6}), fused_bias(dtype::f32, {2, 10});
  call.args.d_weights = split_gate_up(fused, gate_up_layout::interleaved);
  call.args.d_bias = split_gate_up(fused_bias, gate_up_layout::interleaved);
  grouped_gemm_wgrad(call.args, target());
  for (int part = 0; part < 2; ++part) {
    auto const expected = call.expected(part);
    for (index_t e = 0; e < 2; ++e) {
      for (index_t n = 0; n < 5; ++n) {
        EXPECT_EQ(fused_bias.get(e, 2 * n + part), expected.bias[place(e * 5 + n)]);
        EXPECT_EQ(fused.get(e, 2 * n + part, 5), expected.weights[place((e * 5 + n) * 6 + 5)]);
      }
    }
  }
}

TEST(grouped_gemm_wgrad, nan_stays_with_its_expert) {
  wgrad_call call({1, 17, 18}, {4, 3, 2}, dtype::f32, dtype::f32, true, 1.0F);
  call.x.set(nan, 5, 3);
  grouped_gemm_wgrad(call.args, target());
  for (index_t e = 0; e < 3; ++e) {
    for (index_t c = 0; c < 18; ++c) {
      EXPECT_EQ(std::isnan(call.d_weights[0].get(e, 16, c)), e == 1 && c == 3);
    }
  }
}

TEST(grouped_gemm_wgrad, wrong_operands_are_refused) {
  wgrad_call const call({2, 5, 6}, {3, 2}, dtype::f32, dtype::f32, true, 1.0F);
  auto const refused = [&](errc code, auto const& change, auto... parts) {
    grouped_gemm_wgrad_args args = call.args;
    change(args);
    auto const before = call.d_weights[0].bytes();
    EXPECT_MOE64_ERROR(grouped_gemm_wgrad(args, target()), code, "[grouped_gemm_wgrad]", parts...);
    EXPECT_EQ(call.d_weights[0].bytes(), before);
  };
  refused(
      errc::invalid_argument, [](auto& a) { a.parts = 3; }, "parts is 3");
  refused(
      errc::invalid_argument, [](auto& a) { a.parts = 0; }, "parts is 0");
  refused(
      errc::invalid_argument,
      [](auto& a) {
        a.parts = 1;
        a.d_weights[0] = a.d_bias[0] = {};
      },
      "part 1");
  refused(
      errc::invalid_argument, [](auto& a) { a.x = {}; }, "x is absent");
  refused(
      errc::shape_mismatch, [](auto& a) { a.x = a.x.slice(0, 0, 3); }, "[3, 6]");
  refused(
      errc::shape_mismatch, [](auto& a) { a.d_bias[1] = a.dy; }, "d_bias");
  refused(
      errc::shape_mismatch, [](auto& a) { a.expert_begin = a.expert_begin.slice(0, 0, 2); },
      "d_weights");
  if constexpr (!test::on_cuda) {  // where the host can see it
    test_tensor begin(dtype::int64, {3});
    begin.fill([](index_t i, index_t, index_t) { return static_cast<double>(4 * i); });
    refused(
        errc::invalid_argument, [&](auto& a) { a.expert_begin = begin; }, "expert_begin", "7");
  }
  refused(
      errc::invalid_argument, [](auto& a) { a.d_weights[1] = a.d_weights[0]; }, "overlaps");
}

}  // namespace
}  // namespace moe64
