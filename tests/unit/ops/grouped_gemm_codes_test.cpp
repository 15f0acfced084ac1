// grouped_gemm with quantised x: w8a8.
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/gemm.hpp"
#include "support/implementations.hpp"
#include "support/routing.hpp"
#include "support/weights.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::content;
using test::difference;
using test::for_each_implementation;
using test::target;
using test::test_tensor;
using test::test_weights;
using test::weight_spec;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

struct pairing {
  dtype x;
  g x_scale;
  dtype x_scale_type;
  weight_spec weights;
};

std::vector<pairing> pairings() {
  std::vector<pairing> result;
  for (auto const& [x, weight] :
       {std::pair{dtype::e4m3, dtype::e4m3}, std::pair{dtype::e4m3, dtype::e5m2},
        std::pair{dtype::e5m2, dtype::e4m3}, std::pair{dtype::int8, dtype::int8}}) {
    for (g const& x_scale : {g::row(), g::group(128), g::group(32), g::group(48)}) {
      for (g const& scale :
           {g::tensor(), g::row(), g::block(128, 128), g::block(3, 20), g::group(64)}) {
        result.push_back({x, x_scale, dtype::f32, {weight, scale}});
      }
    }
  }
  for (weight_spec const& spec : test::every_weight_format()) {
    result.push_back({dtype::e4m3, g::group(128), dtype::f32, spec});
    result.push_back({dtype::int8, g::row(), dtype::f32, spec});
    result.push_back({dtype::fp4, g::group(32), dtype::e8m0, spec});
  }
  result.push_back(
      {dtype::e4m3, g::group(32), dtype::e8m0, {dtype::e4m3, g::group(32), dtype::e8m0}});
  result.push_back(
      {dtype::e4m3, g::group(128), dtype::bf16, {dtype::e4m3, g::block(128, 128), dtype::f16}});
  return result;
}

std::string words(pairing const& p) {
  return std::string(name(p.x)) + " " + to_string(p.x_scale) + " by " + test::to_string(p.weights);
}

/// x is a stack of one matrix; its rows past the last expert have NaN scales.
struct codes_call {
  test_weights x, weights;
  test_tensor expert_begin, y, bias[2];
  grouped_gemm_args args;

  codes_call(pairing const& p, int parts, index_t part_rows, index_t depth,
             std::vector<index_t> const& counts, content what, dtype y_type) {
    index_t const experts = std::ssize(counts);
    index_t const live = std::accumulate(counts.begin(), counts.end(), index_t{0});
    weight_spec const x_spec{p.x, p.x_scale, p.x_scale_type};
    x = test::make_weights(x_spec, 1, 1, live + 2, depth, what, 3);
    for (index_t r = live; r < x.scales.view().extent[1]; ++r) {
      for (index_t c = 0; c < p.x_scale.grid_cols(depth); ++c) x.scales.set(nan, 0, r, c);
    }
    weights = test::make_weights(p.weights, experts, parts, part_rows, depth, what, 4);
    expert_begin = test::make_expert_begin(counts);
    y = test_tensor(y_type, {live + 2, parts * part_rows});
    bias[0] = test_tensor(dtype::f32, {experts, part_rows});
    bias[0].fill_integers(5, -4, 4);
    args = {x.stack.part(0), weights.stack, expert_begin, false, {bias[0]}, {}, y};
  }
};

double scale_of(quantized_view const& w, index_t expert, index_t grid_row, index_t grid_col) {
  if (w.is_plain()) return 1.0;
  double const scale = oracle::at(w.scales(), expert, grid_row, grid_col);
  if (!w.global().values.present()) return scale;
  double const global = oracle::at(w.global().values, expert);
  bool const multiplies = w.global().applied == global_scale::direction::multiply;
  return multiplies ? scale * global : scale / global;
}

/// The definition once more: codes are multiplied and added over columns that share both scales and
/// one run of 128, the sum is scaled, the scaled sums are added. In double; `size` adds up |terms|.
test::reference_product by_segments(grouped_gemm_args const& args) {
  index_t const capacity = args.y.extent[0];
  index_t const outs = args.y.extent[1];
  index_t const depth = args.x.cols();
  test::reference_product result;
  result.y.assign(place(capacity * outs), nan);
  result.size.assign(place(capacity * outs), 0.0);
  index_t const x_block = args.x.layout().cols_per_scale(depth);
  index_t const w_block = args.weights.layout().cols_per_scale(depth);
  index_t const w_rows = args.weights.layout().rows_per_scale(args.weights.part_rows());
  for (index_t e = 0; e < args.weights.experts(); ++e) {
    for (auto r = static_cast<index_t>(oracle::at(args.expert_begin, e));
         r < static_cast<index_t>(oracle::at(args.expert_begin, e + 1)); ++r) {
      for (index_t n = 0; n < outs; ++n) {
        int const part = n < args.weights.part_rows() ? 0 : 1;
        index_t const row = n - part * args.weights.part_rows();
        quantized_view const& w = args.weights.part(part);
        double sum = 0.0;
        double size = 0.0;
        double segment = 0.0;
        double segment_size = 0.0;
        for (index_t k = 0; k < depth; ++k) {
          double const term =
              oracle::at(args.x.values(), 0, r, k) * oracle::at(w.values(), e, row, k);
          segment += term;
          segment_size += std::fabs(term);
          index_t const next = k + 1;
          bool const ends =
              next == depth || next % 128 == 0 || next % x_block == 0 || next % w_block == 0;
          if (!ends) continue;
          double const scale = oracle::at(args.x.scales(), 0, r, k / x_block) *
                               scale_of(w, e, row / w_rows, k / w_block);
          sum += segment * scale;
          size += segment_size * std::fabs(scale);
          segment = segment_size = 0.0;
        }
        tensor_view const& bias = args.bias[place(part)];
        if (bias.present()) sum += oracle::at(bias, e, row);
        if (bias.present()) size += std::fabs(oracle::at(bias, e, row));
        result.y[place(r * outs + n)] = sum;
        result.size[place(r * outs + n)] = size;
      }
    }
  }
  return result;
}

TEST(grouped_gemm_codes, exact_on_integers_for_every_pair_of_formats) {
  for (pairing const& p : pairings()) {
    SCOPED_TRACE(words(p));
    codes_call const call(p, 2, 21, 150, {3, 0, 9}, content::integers, dtype::f32);
    std::vector<double> const expected = by_segments(call.args).y;
    EXPECT_EQ(difference(expected, test::multiply(call.args).y), "");
    for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
      grouped_gemm(args, target());
      EXPECT_EQ(difference(call.y.numbers(), expected), "");
    });
  }
}

TEST(grouped_gemm_codes, random_codes_within_the_bound_of_f32_sums) {
  for (pairing const& p : pairings()) {
    for (dtype const y_type : {dtype::f32, dtype::bf16}) {
      SCOPED_TRACE(words(p));
      codes_call const call(p, 1, 19, 300, {5, 1}, content::random, y_type);
      test::reference_product const expected = by_segments(call.args);
      // Besides the additions: the product of the scales, that with the sum, the bias.
      std::vector<double> const bound = test::rounding_bound(expected, 300 + 3, y_type);
      for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
        grouped_gemm(args, target());
        EXPECT_EQ(difference(call.y.numbers(), expected.y, bound), "");
      });
    }
  }
}

TEST(grouped_gemm_codes, odd_depths_widths_and_counts) {
  pairing const grouped{dtype::e4m3, g::group(128), dtype::f32, {dtype::e4m3, g::block(128, 128)}};
  pairing const by_row{dtype::int8, g::row(), dtype::f32, {dtype::int8, g::row()}};
  for (pairing const& p : {grouped, by_row}) {
    for (index_t const size : {1, 15, 16, 17, 127, 128, 129, 320, 513, 704}) {
      SCOPED_TRACE(words(p) + " " + std::to_string(size));
      codes_call const deep(p, 1, 17, size, {0, 1, 31, 32, 33, 0}, content::integers, dtype::f32);
      grouped_gemm(deep.args, target());
      EXPECT_EQ(difference(deep.y.numbers(), by_segments(deep.args).y), "");
      codes_call const wide(p, 2, size, 33, {7, 0, 2}, content::integers, dtype::f32);
      grouped_gemm(wide.args, target());
      EXPECT_EQ(difference(wide.y.numbers(), by_segments(wide.args).y), "");
    }
  }
}

TEST(grouped_gemm_codes, a_row_with_nan_scale_stays_alone) {
  pairing const p{dtype::e4m3, g::group(128), dtype::f32, {dtype::e4m3, g::block(128, 128)}};
  codes_call call(p, 1, 17, 200, {5, 4}, content::integers, dtype::f32);
  call.x.scales.set(nan, 0, 2, 1);
  std::vector<double> expected = by_segments(call.args).y;
  for (std::size_t n = 0; n < 17; ++n) EXPECT_TRUE(std::isnan(expected[2 * 17 + n]));
  grouped_gemm(call.args, target());
  EXPECT_EQ(difference(call.y.numbers(), expected), "");
}

TEST(grouped_gemm_codes, low_rank_addend) {
  pairing const p{dtype::e4m3, g::row(), dtype::f32, {dtype::e4m3, g::block(128, 128)}};
  codes_call call(p, 2, 17, 140, {5, 4}, content::integers, dtype::bf16);
  test_tensor u(dtype::bf16, {11, 3});
  u.fill_integers(7, -4, 4);
  test_weights const b = test::make_weights({dtype::f32}, 2, 2, 17, 3, content::integers, 8);
  call.args.low_rank = {u, b.stack, 2.0F};
  grouped_gemm(call.args, target());
  EXPECT_EQ(difference(call.y.numbers(), test::rounded(test::multiply(call.args).y, dtype::bf16)),
            "");
}

TEST(grouped_gemm_codes, what_has_no_meaning_is_refused) {
  auto const refused = [](pairing const& p, bool transpose, errc code, auto... parts) {
    codes_call call(p, 1, 16, 16, {3}, content::integers, dtype::f32);
    call.args.transpose = transpose;
    if (transpose) call.args.bias = {};
    EXPECT_MOE64_ERROR(grouped_gemm(call.args, target()), code, "[grouped_gemm]", parts...);
  };
  weight_spec const e4m3{dtype::e4m3, g::row()};
  refused({dtype::e4m3, g::row(), dtype::f32, e4m3}, true, errc::unsupported, "transposed");
  refused({dtype::e4m3, g::block(2, 2), dtype::f32, e4m3}, false, errc::invalid_argument,
          "block:2x2");
}

}  // namespace
}  // namespace moe64
