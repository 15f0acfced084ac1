// combine and slot_weight_gradient.
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "unit/ops/varied_plan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::difference;
using test::float_types;
using test::for_each_implementation;
using test::make_plan;
using test::nan;
using test::place;
using test::target;
using test::test_plan;
using test::test_tensor;
using test::varied_plan;

/// y by the definition: f32 sums in slot order. Float arithmetic is the definition here.
std::vector<double> combined(test_plan const& p, quantized_view const& rows, bool weighted,
                             dtype type) {
  std::vector<double> result;
  for (index_t token = 0; token < p.plan.tokens; ++token) {
    for (index_t c = 0; c < rows.cols(); ++c) {
      double sum = 0.0;
      for (index_t k = 0; k < p.plan.top_k; ++k) {
        index_t const slot = token * p.plan.top_k + k;
        index_t const row = p.rows.slot_to_row[place(slot)];
        if (row < 0) continue;
        double term = oracle::at(rows, 0, row, c);
        if (weighted) term = oracle::round_to(p.slot_weight.get(slot) * term, dtype::f32);
        sum = oracle::round_to(sum + term, dtype::f32);
      }
      result.push_back(oracle::round_to(sum, type));
    }
  }
  return result;
}

TEST(combine, sums_in_slot_order_with_one_rounding) {
  test_plan const p = varied_plan(23, 7);
  for (dtype const rows_type : float_types) {
    for (dtype const y_type : float_types) {
      for (bool const weighted : {false, true}) {
        SCOPED_TRACE(std::string(name(rows_type)) + " to " + std::string(name(y_type)));
        test_tensor rows(rows_type, {161, 520});
        test::random_source const random(3);
        // Sizes so different that another order of additions shows.
        rows.fill([&](index_t r, index_t c, index_t) {
          if (r >= p.live()) return nan;
          return std::ldexp(random.uniform(r * 520 + c), static_cast<int>((r * 7 + c) % 25) - 12);
        });
        test_tensor const y(y_type, {23, 520});
        quantized_view const q = quantized_view::plain(rows);
        for_each_implementation(
            combine_args{q, p.plan, weighted, y}, [&](combine_args const& args) {
              combine(args, target());
              EXPECT_EQ(difference(y.numbers(), combined(p, q, weighted, y_type)), "");
            });
      }
    }
  }
}

TEST(combine, the_order_is_that_of_slots_not_of_rows) {
  // (2^24 + 1) + 1 is 2^24 in f32, (1 + 1) + 2^24 is not; experts are numbered against the order.
  test_plan const p = make_plan({.tokens = 2, .top_k = 3, .experts = 3, .ids = {2, 1, 0, 0, 1, 2}});
  test_tensor rows(dtype::f32, {6, 1});
  auto const set = [&](index_t slot, double value) {
    rows.set(value, p.rows.slot_to_row[place(slot)], 0);
  };
  set(0, 0x1p24), set(1, 1.0), set(2, 1.0);
  set(3, 1.0), set(4, 1.0), set(5, 0x1p24);
  test_tensor const y(dtype::f32, {2, 1});
  combine({quantized_view::plain(rows), p.plan, false, y}, target());
  EXPECT_EQ(y.get(0, 0), 0x1p24);
  EXPECT_EQ(y.get(1, 0), 0x1p24 + 2.0);
}

TEST(combine, reads_quantised_rows_with_their_scales) {
  test_plan const p = varied_plan();
  for (dtype const type : {dtype::e4m3, dtype::e5m2, dtype::int8, dtype::int4, dtype::fp4}) {
    for (granularity const& layout : {granularity::row(), granularity::group(16)}) {
      test_tensor values(type, {69, 40}), scales(dtype::f32, {69, layout.grid_cols(40)});
      values.fill_integers(4, -4, 4);
      scales.fill_uniform(5, 0.1, 2.0);
      for (index_t row = p.live(); row < 69; ++row) scales.set(nan, row, 0);
      quantized_view const q = quantized_view::scaled(values, scales, layout);
      test_tensor const y(dtype::bf16, {23, 40});
      for_each_implementation(combine_args{q, p.plan, true, y}, [&](combine_args const& args) {
        combine(args, target());
        EXPECT_EQ(difference(y.numbers(), combined(p, q, true, dtype::bf16)), "");
      });
    }
  }
}

TEST(combine, tokens_without_rows_become_zero_and_nan_stays_in_its_token) {
  test_plan const p =
      make_plan({.tokens = 4, .top_k = 2, .experts = 2, .ids = {-1, 2, 1, 0, 0, 0, 1, -1}});
  test_tensor rows(dtype::f32, {8, 3}, {1, 8});
  rows.fill([&](index_t r, index_t, index_t) {
    return r >= p.live() || r == p.rows.slot_to_row[6] ? nan : 1.0;
  });
  test_tensor const y(dtype::f16, {4, 3}, {16, 5});
  combine({quantized_view::plain(rows), p.plan, false, y}, target());
  EXPECT_EQ(difference(y.numbers(), {0, 0, 0, 2, 2, 2, 2, 2, 2, nan, nan, nan}), "");
}

TEST(combine, is_the_gradient_of_gather_on_integers) {
  test_plan const p = varied_plan();
  test_tensor x(dtype::f32, {23, 6}), d(dtype::f32, {69, 6});
  x.fill_integers(1, -9, 9);
  d.fill_integers(2, -9, 9);
  test_tensor const rows(dtype::f32, {69, 6}), y(dtype::f32, {23, 6});
  gather({x, {}, p.plan, false, rows, {}}, target());
  combine({quantized_view::plain(d), p.plan, false, y}, target());
  double left = 0.0, right = 0.0;
  for (index_t r = 0; r < p.live(); ++r) {
    for (index_t c = 0; c < 6; ++c) left += rows.get(r, c) * d.get(r, c);
  }
  for (index_t t = 0; t < 23; ++t) {
    for (index_t c = 0; c < 6; ++c) right += x.get(t, c) * y.get(t, c);
  }
  EXPECT_EQ(left, right);
}

TEST(combine, gather_and_gradient_of_plans_without_rows_or_tokens) {
  for (index_t const tokens : {0, 3}) {
    test_plan const p = make_plan({.tokens = tokens,
                                   .top_k = 2,
                                   .experts = 2,
                                   .ids = std::vector<index_t>(place(tokens * 2), -1)});
    test_tensor const x(dtype::f32, {tokens, 5}), rows(dtype::f32, {tokens * 2, 5});
    test_tensor const y(dtype::f32, {tokens, 5}), d(dtype::f32, {tokens, 2});
    auto const before = rows.bytes();
    gather({x, {}, p.plan, false, rows, {}}, target());
    EXPECT_EQ(rows.bytes(), before);
    combine({quantized_view::plain(rows), p.plan, true, y}, target());
    slot_weight_gradient({rows, rows, {}, {}, p.plan, d}, target());
    for (double const value : y.numbers()) EXPECT_EQ(value, 0.0);
    for (double const value : d.numbers()) EXPECT_EQ(value, 0.0);
  }
}

// ---- slot_weight_gradient -----------------------------------------------------------------------

TEST(slot_weight_gradient, is_a_row_dot_exact_on_integers) {
  test_plan const p = varied_plan();
  for (dtype const type : float_types) {
    for (index_t const n : {1, 15, 16, 17, 513, 1100}) {
      for (bool const with_bias : {false, true}) {
        test_tensor left(type, {69, n}), right(type, {69, n}, {n + 3, 1});
        left.fill_integers(1, -9, 9);
        right.fill_integers(2, -9, 9);
        test_tensor bias, bias_rows;
        if (with_bias) {
          bias = test_tensor(dtype::f32, {5, 21});
          bias_rows = test_tensor(type, {69, 21});
          bias.fill_integers(3, -9, 9);
          bias_rows.fill_integers(4, -9, 9);
        }
        for (index_t r = p.live(); r < 69; ++r) left.set(nan, r, 0);
        test_tensor const d(dtype::f32, {23, 3}, {7, 2});
        for_each_implementation(
            slot_weight_gradient_args{left, right, bias_rows, bias, p.plan, d},
            [&](slot_weight_gradient_args const& args) {
              slot_weight_gradient(args, target());
              for (index_t slot = 0; slot < 69; ++slot) {
                index_t const row = p.rows.slot_to_row[place(slot)];
                double expected = 0.0;
                for (index_t c = 0; row >= 0 && c < n; ++c) {
                  expected += left.get(row, c) * right.get(row, c);
                }
                for (index_t c = 0; row >= 0 && with_bias && c < 21; ++c) {
                  expected += bias_rows.get(row, c) * bias.get(p.expert_of(row), c);
                }
                ASSERT_EQ(d.get(slot / 3, slot % 3), expected) << "slot " << slot << " n " << n;
              }
            });
      }
    }
  }
}

TEST(slot_weight_gradient, random_numbers_within_the_bound_of_a_dot_product) {
  test_plan const p = varied_plan();
  index_t const n = 700;
  test_tensor left(dtype::f32, {69, n}), right(dtype::f32, {69, n});
  left.fill_uniform(1);
  right.fill_uniform(2);
  test_tensor const d(dtype::f32, {23, 3});
  slot_weight_gradient({left, right, {}, {}, p.plan, d}, target());
  for (index_t slot = 0; slot < 69; ++slot) {
    index_t const row = p.rows.slot_to_row[place(slot)];
    double expected = 0.0, size = 0.0;
    for (index_t c = 0; row >= 0 && c < n; ++c) {
      expected += left.get(row, c) * right.get(row, c);
      size += std::fabs(left.get(row, c) * right.get(row, c));
    }
    // n products and n additions, each within 2^-24 of the terms that it has seen.
    EXPECT_NEAR(d.get(slot / 3, slot % 3), expected, size * static_cast<double>(n + 1) * 0x1p-24);
  }
}

}  // namespace
}  // namespace moe64
