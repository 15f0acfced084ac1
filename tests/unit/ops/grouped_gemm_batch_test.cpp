// Every implementation gives a row the same bits whatever rows come with it.
#include "support/gemm_call.hpp"
#include "support/implementations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::content;
using test::for_each_implementation;
using test::gemm_call;
using test::target;
using test::test_tensor;
using test::weight_spec;

/// Rows [first, first + count) of a tensor with unit rank-2 layout.
tensor_view rows_of(tensor_view const& matrix, index_t first, index_t count) {
  return matrix.slice(0, first, first + count);
}

/// One row alone has the bits that it has among 1..200 others.
void expect_batch_invariance(gemm_call const& call, index_t rows) {
  for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
    grouped_gemm(args, target());
    std::vector<std::uint64_t> const whole = call.y.codes();
    index_t const outs = call.y.view().extent[1];
    for (index_t const count : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 100, 150, 199}) {
      for (index_t const first : {index_t{0}, (rows - count) / 2, rows - count}) {
        test_tensor const begin = test::make_expert_begin({count});
        test_tensor const y(call.y.view().type, {count, outs});
        grouped_gemm_args part = args;
        part.x = quantized_view::plain(rows_of(call.x, first, count));
        part.expert_begin = begin;
        part.y = y;
        if (args.low_rank.u.present()) part.low_rank.u = rows_of(call.u, first, count);
        grouped_gemm(part, target());
        std::vector<std::uint64_t> const codes = y.codes();
        auto const from = whole.begin() + first * outs;
        ASSERT_TRUE(std::equal(codes.begin(), codes.end(), from)) << count << " rows";
      }
    }
  });
}

TEST(grouped_gemm_batch, a_row_has_the_same_bits_in_every_batch) {
  weight_spec const e4m3{dtype::e4m3, g::block(128, 128)};
  weight_spec const fp4{dtype::fp4, g::group(32), dtype::e8m0};
  for (weight_spec const& spec : {e4m3, fp4, weight_spec{dtype::bf16}}) {
    for (bool const transpose : {false, true}) {
      for (index_t const rank : {0, 4}) {
        SCOPED_TRACE(test::to_string(spec) + (transpose ? " transposed" : ""));
        gemm_call const call(spec, {2, 96, 288}, {200}, dtype::bf16, content::random,
                             {transpose, false, rank});
        expect_batch_invariance(call, 200);
      }
    }
  }
}

}  // namespace
}  // namespace moe64
