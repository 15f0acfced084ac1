// grouped_gemm with plain x: native and w8a16.
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/gemm.hpp"
#include "support/gemm_call.hpp"
#include "support/implementations.hpp"
#include "support/weights.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::content;
using test::difference;
using test::for_each_implementation;
using test::gemm_call;
using test::target;
using test::test_tensor;
using test::test_weights;
using test::weight_spec;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};
constexpr index_t odd_sizes[] = {1, 15, 16, 17, 127, 128, 129, 320, 513, 704};
std::vector<index_t> const odd_counts{0, 1, 7, 8, 9, 31, 32, 33, 127, 128, 129, 0};

void expect_exact(gemm_call const& call) {
  std::vector<double> const expected =
      test::rounded(test::multiply(call.args).y, call.y.view().type);
  for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
    grouped_gemm(args, target());
    EXPECT_EQ(difference(call.y.numbers(), expected), "");
  });
}

void expect_close(gemm_call const& call) {
  test::reference_product const expected = test::multiply(call.args);
  std::vector<double> const bound = test::rounding_bound(expected, call.terms, call.y.view().type);
  for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
    grouped_gemm(args, target());
    EXPECT_EQ(difference(call.y.numbers(), expected.y, bound), "");
  });
}

std::string words(weight_spec const& spec, dtype io, bool transpose) {
  return test::to_string(spec) + " by " + std::string(name(io)) + (transpose ? " transposed" : "");
}

class grouped_gemm_depth : public testing::TestWithParam<index_t> {};

TEST_P(grouped_gemm_depth, is_exact_for_every_count_of_rows) {
  for (bool const transpose : {false, true}) {
    weight_spec const spec{dtype::e4m3, g::block(128, 128)};
    gemm_call::shape const s =
        transpose ? gemm_call::shape{1, GetParam(), 33} : gemm_call::shape{1, 33, GetParam()};
    expect_exact({spec, s, odd_counts, dtype::bf16, content::integers, {transpose, false, 0}});
  }
  expect_exact({{dtype::f32},
                {1, 18, GetParam()},
                odd_counts,
                dtype::f32,
                content::integers,
                {false, true, 5}});
}

TEST_P(grouped_gemm_depth, is_exact_for_every_count_of_outputs) {
  std::vector<index_t> const counts{3, 0, 33};
  for (bool const transpose : {false, true}) {
    weight_spec const spec{dtype::e4m3, g::block(128, 128)};
    gemm_call::shape const s =
        transpose ? gemm_call::shape{2, 20, GetParam()} : gemm_call::shape{2, GetParam(), 40};
    expect_exact({spec, s, counts, dtype::bf16, content::integers, {transpose, false, 0}});
    expect_exact({{dtype::f16}, s, counts, dtype::f16, content::integers, {transpose, false, 3}});
  }
}

INSTANTIATE_TEST_SUITE_P(sizes, grouped_gemm_depth, testing::ValuesIn(odd_sizes));

class grouped_gemm_format : public testing::TestWithParam<weight_spec> {};

/// The stored forms that a type can have.
std::vector<weight_spec> storages(weight_spec const& format) {
  std::vector<weight_spec> result;
  for (auto const layout : {gate_up_layout::concatenated, gate_up_layout::interleaved}) {
    for (bool const in_first : {false, true}) {
      if (in_first && bits(format.type) == 4) continue;
      result.push_back(format);
      result.back().layout = layout;
      result.back().in_first = in_first;
    }
  }
  return result;
}

TEST_P(grouped_gemm_format, is_exact_on_integers_in_every_storage) {
  std::vector<index_t> const counts{5, 0, 34};
  for (weight_spec const& spec : storages(GetParam())) {
    for (dtype const io : float_types) {
      for (bool const transpose : {false, true}) {
        SCOPED_TRACE(words(spec, io, transpose));
        for (int const parts : {1, 2}) {
          gemm_call::shape const s{parts, 19, 37};
          expect_exact({spec, s, counts, io, content::integers, {transpose, false, 0}});
          expect_exact({spec, s, counts, io, content::integers, {transpose, !transpose, 3}});
        }
      }
    }
  }
}

TEST_P(grouped_gemm_format, is_exact_past_one_scale_block) {
  std::vector<index_t> const counts{2, 3};
  for (bool const transpose : {false, true}) {
    SCOPED_TRACE(words(GetParam(), dtype::bf16, transpose));
    expect_exact(
        {GetParam(), {2, 131, 133}, counts, dtype::bf16, content::integers, {transpose, false, 0}});
  }
}

TEST_P(grouped_gemm_format, random_numbers_stay_within_the_bound_of_f32_sums) {
  std::vector<index_t> const counts{9, 1, 0, 21};
  for (dtype const io : float_types) {
    for (bool const transpose : {false, true}) {
      SCOPED_TRACE(words(GetParam(), io, transpose));
      expect_close(
          {GetParam(), {2, 35, 67}, counts, io, content::random, {transpose, !transpose, 6}});
    }
  }
}

TEST_P(grouped_gemm_format, experts_without_rows_may_hold_anything) {
  for (bool const transpose : {false, true}) {
    gemm_call call(GetParam(), {2, 9, 20}, {0, 3, 0, 2, 0}, dtype::bf16, content::integers,
                   {transpose, false, 0});
    std::vector<double> const expected = test::rounded(test::multiply(call.args).y, dtype::bf16);
    for (index_t const expert : {0, 2, 4}) call.weights.poison_expert(expert);
    for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
      grouped_gemm(args, target());
      EXPECT_EQ(difference(call.y.numbers(), expected), "");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(formats, grouped_gemm_format,
                         testing::ValuesIn(test::every_weight_format()),
                         [](auto const& tested) { return test::to_string(tested.param); });

void expect_as_dequantised_first(weight_spec const& spec) {
  std::vector<index_t> const counts{4, 0, 17};
  for (dtype const io : float_types) {
    for (bool const transpose : {false, true}) {
      SCOPED_TRACE(words(spec, io, transpose));
      gemm_call const call(spec, {2, 21, 530}, counts, io, content::random, {transpose, false, 4});
      test_tensor parts[2];
      for (int part = 0; part < 2; ++part) {
        parts[part] = test_tensor(io, {3, 21, 530});
        dequantize({call.weights.stack.part(part), parts[part]}, target());
      }
      grouped_gemm_args native = call.args;
      native.weights =
          weight_stack::gate_up(quantized_view::plain(parts[0]), quantized_view::plain(parts[1]));
      test_tensor const y(io, {call.y.view().extent[0], call.y.view().extent[1]});
      native.y = y;
      for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
        native.implementation = args.implementation;
        grouped_gemm(native, target());
        grouped_gemm(args, target());
        EXPECT_EQ(y.bytes(), call.y.bytes());
      });
    }
  }
}

TEST(grouped_gemm, equals_dequantising_first_bit_by_bit) {
  for (weight_spec const& spec : test::every_weight_format()) {
    if (spec.scale.kind != scale_kind::none) expect_as_dequantised_first(spec);
  }
}

TEST(grouped_gemm, nan_and_infinity_stay_in_their_row) {
  for (double const bad : {nan, std::numeric_limits<double>::infinity()}) {
    for (bool const transpose : {false, true}) {
      gemm_call call({dtype::bf16}, {1, 34, 35}, {40, 7}, dtype::bf16, content::integers,
                     {transpose, false, 0});
      std::vector<double> const clean = test::multiply(call.args).y;
      call.x.set(bad, 5, 33);
      for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
        grouped_gemm(args, target());
        index_t const outs = call.y.view().extent[1];
        for (index_t r = 0; r < 47; ++r) {
          for (index_t n = 0; n < outs; ++n) {
            double const expected =
                oracle::round_to(clean[static_cast<std::size_t>(r * outs + n)], dtype::bf16);
            if (r != 5) {
              ASSERT_EQ(call.y.get(r, n), expected) << r << "," << n;
            } else {
              ASSERT_FALSE(std::isfinite(call.y.get(r, n)) && std::isnan(bad));
            }
          }
        }
      });
    }
  }
}

TEST(grouped_gemm, a_bad_weight_stays_in_its_output) {
  gemm_call call({dtype::f32}, {1, 20, 35}, {3, 3}, dtype::f32, content::integers, {});
  std::vector<double> expected = test::multiply(call.args).y;
  call.weights.values.set(nan, 1, 17, 34);
  for (std::size_t r = 3; r < 6; ++r) expected[r * 20 + 17] = nan;
  grouped_gemm(call.args, target());
  EXPECT_EQ(difference(call.y.numbers(), expected), "");
}

TEST(grouped_gemm, strided_operands_and_mixed_types) {
  for (dtype const x_type : float_types) {
    for (dtype const y_type : float_types) {
      gemm_call const call({dtype::e4m3, g::row()}, {2, 19, 50}, {4, 9}, x_type, content::integers,
                           {false, true, 2});
      test_tensor x(x_type, {16, 50}, {1, 17}), y(y_type, {16, 38}, {40, 1});
      x.fill([&](index_t r, index_t c, index_t) { return call.x.get(r, c); });
      grouped_gemm_args args = call.args;
      args.x = quantized_view::plain(x);
      args.y = y;
      std::vector<double> const expected = test::rounded(test::multiply(args).y, y_type);
      grouped_gemm(args, target());
      EXPECT_EQ(difference(y.numbers(), expected), "");
    }
  }
}

TEST(grouped_gemm, native_weights_may_have_another_type_than_x) {
  for (dtype const weight : float_types) {
    for (dtype const io : float_types) {
      expect_close({{weight}, {1, 17, 70}, {5, 2}, io, content::random, {false, true, 3}});
    }
  }
}

TEST(grouped_gemm, one_bias_of_two) {
  gemm_call call({dtype::bf16}, {2, 8, 12}, {3}, dtype::bf16, content::integers, {false, true, 0});
  call.args.bias[0] = {};
  expect_exact(call);
}

TEST(grouped_gemm, empty_extents) {
  expect_exact({{dtype::bf16}, {1, 8, 12}, {0, 0}, dtype::bf16, content::integers, {}});
  expect_exact({{dtype::bf16}, {1, 0, 12}, {2, 1}, dtype::bf16, content::integers, {}});
  // A sum over nothing is zero, and the bias is still added.
  expect_exact(
      {{dtype::bf16}, {1, 8, 0}, {2, 1}, dtype::bf16, content::integers, {false, true, 0}});
  expect_exact({{dtype::bf16}, {1, 8, 0}, {}, dtype::bf16, content::integers, {}});
}

#ifndef MOE64_TEST_CUDA  // there the host does not see them

TEST(grouped_gemm, ranges_that_are_none_are_refused) {
  gemm_call const call({dtype::bf16}, {1, 8, 12}, {2, 1}, dtype::bf16, content::integers, {});
  for (auto const& begin :
       {std::vector<double>{0, 2, 7}, {1, 2, 3}, {0, 4, 3}, {0, -1, 3}, {0, 2, 9e18}}) {
    test_tensor wrong(dtype::int64, {3});
    wrong.fill([&](index_t i, index_t, index_t) { return begin[static_cast<std::size_t>(i)]; });
    grouped_gemm_args args = call.args;
    args.expert_begin = wrong;
    auto const before = call.y.bytes();
    EXPECT_MOE64_ERROR(grouped_gemm(args, target()), errc::invalid_argument, "[grouped_gemm]",
                       "expert_begin", "6");
    EXPECT_EQ(call.y.bytes(), before);
  }
}

#endif

TEST(grouped_gemm, wrong_operands_are_refused_with_their_values) {
  gemm_call const call({dtype::e4m3, g::row()}, {2, 8, 12}, {2, 1}, dtype::bf16, content::integers,
                       {false, true, 2});
  auto const refused = [&](errc code, auto const& change, auto... parts) {
    grouped_gemm_args args = call.args;
    change(args);
    auto const before = call.y.bytes();
    EXPECT_MOE64_ERROR(grouped_gemm(args, target()), code, "[grouped_gemm]", parts...);
    EXPECT_EQ(call.y.bytes(), before);
  };
  test_tensor const wide(dtype::bf16, {6, 13}), stack(dtype::bf16, {2, 6, 12});
  test_tensor const call_memory = test::make_workspace(grouped_gemm_scratch_bytes);
  refused(
      errc::shape_mismatch, [&](auto& a) { a.x = quantized_view::plain(wide); }, "cols of x (13)",
      "(12)");
  refused(
      errc::shape_mismatch, [&](auto& a) { a.x = quantized_view::plain(stack); }, "2");
  refused(
      errc::shape_mismatch, [&](auto& a) { a.y = wide; }, "y is", "16");
  refused(
      errc::invalid_argument, [&](auto& a) { a.weights = {}; }, "weights are absent");
  refused(
      errc::shape_mismatch, [&](auto& a) { a.transpose = true; }, "rows of weights (16)");
  refused(
      errc::shape_mismatch, [&](auto& a) { a.bias[1] = wide; }, "bias");
  refused(
      errc::shape_mismatch, [&](auto& a) { a.low_rank.u = wide; }, "low_rank");
  refused(
      errc::dtype_mismatch, [&](auto& a) { a.low_rank.weights = a.weights; }, "low_rank");
  refused(
      errc::invalid_argument, [&](auto& a) { a.low_rank.u = {}; }, "low_rank.u");
  refused(
      errc::unsupported, [&](auto& a) { a.implementation = "fastest"; }, "fastest");
  test_tensor const int_begin(dtype::int32, {3}), short_begin(dtype::int64, {2});
  refused(
      errc::dtype_mismatch, [&](auto& a) { a.expert_begin = int_begin; }, "int32");
  refused(
      errc::shape_mismatch, [&](auto& a) { a.expert_begin = short_begin; }, "[2]");
  workspace const memory = call_memory.as_workspace();
  refused(
      errc::invalid_argument,
      [&](auto& a) {
        a.scratch = memory;
        a.y = tensor_view::contiguous(memory.data, dtype::bf16, {a.y.extent[0], a.y.extent[1]},
                                      memory.device);
      },
      "scratch", "overlaps y");
  refused(
      errc::workspace_too_small,
      [&](auto& a) {
        a.scratch = {static_cast<char*>(memory.data) + 8, 64, memory.device};
      },
      "scratch", "aligned");
}

}  // namespace
}  // namespace moe64
