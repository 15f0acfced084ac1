// grouped_gemm and its weight gradient with f32 outputs, whatever the type of x: a sum that is
// added in another order shows there, while rounding to bf16 hides it in all but a few outputs.
#include "support/gemm_call.hpp"
#include "support/implementations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::content;
using test::for_each_implementation;
using test::gemm_call;
using test::target;
using test::test_tensor;
using test::weight_spec;
using g = granularity;
using codes = std::vector<std::uint64_t>;

dtype const io_types[] = {dtype::f32, dtype::bf16, dtype::f16};

std::vector<weight_spec> formats() {
  return {{dtype::e4m3, g::block(128, 128)},
          {dtype::e4m3, g::row()},
          {dtype::e5m2, g::group(32)},
          {dtype::int8, g::row()},
          {dtype::int4, g::group(32)},
          {dtype::fp4, g::group(32), dtype::e8m0},
          {dtype::bf16}};
}

bool is_slow(std::string_view implementation) {
  return implementation == "scalar" || implementation == "reference";
}

/// The implementations that write f32: not those of sm_90a, which tests/cuda has tests for.
template <class Body>
void for_each_that_writes_f32(gemm_call const& call, Body const& body) {
  test_tensor const y(dtype::f32, {call.args.y.extent[0], call.args.y.extent[1]});
  grouped_gemm_args args = call.args;
  args.y = y;
  for_each_implementation(args, body);
}

/// The call with y in f32, on some of its rows, which belong to some of its experts.
codes product_of(grouped_gemm_args args, tensor_view const& x, tensor_view const& u,
                 std::vector<index_t> const& counts) {
  test_tensor const begin = test::make_expert_begin(counts);
  test_tensor const y(dtype::f32, {x.extent[0], args.y.extent[1]});
  args.x = quantized_view::plain(x);
  if (args.low_rank.u.present()) args.low_rank.u = u;
  args.expert_begin = begin;
  args.y = y;
  grouped_gemm(args, target());
  return y.codes();
}

codes product_of(grouped_gemm_args const& args, gemm_call const& call,
                 std::vector<index_t> const& counts) {
  return product_of(args, call.x, call.u, counts);
}

// ---- rows ---------------------------------------------------------------------------------------

/// Rows [first, first + count) as all rows of the only expert that has some.
void expect_rows(grouped_gemm_args const& args, gemm_call const& call, codes const& whole,
                 index_t first, index_t count) {
  index_t const outs = call.y.view().extent[1];
  codes const found = product_of(
      args, call.x.view().slice(0, first, first + count),
      args.low_rank.u.present() ? call.u.view().slice(0, first, first + count) : tensor_view{},
      {0, count});
  ASSERT_TRUE(std::equal(found.begin(), found.end(), whole.begin() + first * outs))
      << count << " rows from " << first;
}

void expect_one_result_in_any_batch(weight_spec const& spec, gemm_call::shape const& shape,
                                    dtype io, gemm_call::extras const& extra, bool slow) {
  index_t const rows = slow ? 70 : 600;
  gemm_call const call(spec, shape, {0, rows}, io, content::random, extra);
  SCOPED_TRACE(to_string(spec) + " by " + std::string(name(io)) + ", " +
               std::to_string(call.terms) + " terms" + (extra.transpose ? ", transposed" : ""));
  for_each_that_writes_f32(call, [&](grouped_gemm_args const& args) {
    if (is_slow(args.implementation) != slow) return;
    codes const whole = product_of(args, call, {0, rows});
    for (index_t const count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 64, 65, 257, 511}) {
      for (index_t const first : {index_t{0}, (rows - count) / 2, rows - count}) {
        if (first >= 0 && count <= rows) expect_rows(args, call, whole, first, count);
      }
    }
  });
}

TEST(products, a_row_has_the_same_bits_in_every_batch) {
  for (weight_spec const& spec : formats()) {
    for (bool const transpose : {false, true}) {
      for (dtype const io : {dtype::bf16, dtype::f32}) {
        expect_one_result_in_any_batch(spec, {2, 33, 160}, io, {transpose, false, 0}, false);
      }
      expect_one_result_in_any_batch(spec, {2, 33, 160}, dtype::bf16, {transpose, !transpose, 5},
                                     false);
      expect_one_result_in_any_batch(spec, {1, 20, 131}, dtype::bf16, {transpose, false, 3}, true);
    }
  }
}

TEST(products, a_row_has_the_same_bits_in_every_batch_over_long_sums) {
  for (weight_spec const& spec : {weight_spec{dtype::e4m3, g::block(128, 128)},
                                  weight_spec{dtype::e4m3, g::row()}, weight_spec{dtype::bf16}}) {
    for (dtype const io : {dtype::bf16, dtype::f32}) {
      for (index_t const depth : {1312, 4608}) {
        expect_one_result_in_any_batch(spec, {1, 29, depth}, io, {}, false);
        expect_one_result_in_any_batch(spec, {1, depth, 29}, io, {.transpose = true}, false);
      }
    }
  }
}

// ---- dequantised before -------------------------------------------------------------------------

TEST(products, quantised_weights_give_the_bits_of_dequantised_ones) {
  std::vector<index_t> const counts{40, 0, 5, 3, 1};
  for (weight_spec const& spec : test::every_weight_format()) {
    if (!is_quantized(spec.type)) continue;
    for (dtype const io : io_types) {
      for (bool const transpose : {false, true}) {
        gemm_call const call(spec, {1, 44, 160}, counts, io, content::random,
                             {transpose, false, 0});
        SCOPED_TRACE(to_string(spec) + " by " + std::string(name(io)) +
                     (transpose ? ", transposed" : ""));
        test_tensor const numbers(io, {std::ssize(counts), 44, 160});
        dequantize({.q = call.weights.stack.part(0), .out = numbers}, target());
        for_each_that_writes_f32(call, [&](grouped_gemm_args const& args) {
          grouped_gemm_args native = args;
          native.weights = weight_stack::single(quantized_view::plain(numbers));
          EXPECT_EQ(product_of(args, call, counts), product_of(native, call, counts));
        });
      }
    }
  }
}

// ---- weight gradients
// ----------------------------------------------------------------------------

/// Both gradients in f32.
codes gradients_of(grouped_gemm_wgrad_args args, test::target_stream where = target()) {
  index_t const experts = args.expert_begin.extent[0] - 1;
  test_tensor const d_weights(dtype::f32, {experts, args.dy.extent[1], args.x.extent[1]});
  test_tensor const d_bias(dtype::f32, {experts, args.dy.extent[1]});
  args.d_weights[0] = d_weights;
  args.d_bias[0] = d_bias;
  grouped_gemm_wgrad(args, where);
  codes result = d_weights.codes();
  codes const bias = d_bias.codes();
  result.insert(result.end(), bias.begin(), bias.end());
  return result;
}

struct gradient_call {
  std::vector<index_t> counts{300, 1, 0, 17, 4};
  test_tensor dy, x, begin = test::make_expert_begin(counts), d{dtype::f32, {5, 45, 77}};
  grouped_gemm_wgrad_args args;

  explicit gradient_call(dtype io) : dy(io, {322, 45}), x(io, {322, 77}) {
    dy.fill_uniform(1);
    x.fill_uniform(2);
    args = {.dy = dy, .x = x, .expert_begin = begin, .d_weights = {d, {}}};
  }
};

TEST(products, weight_gradient_of_an_expert_depends_on_its_rows_only) {
  for (dtype const io : io_types) {
    gradient_call const call(io);
    for_each_implementation(call.args, [&](grouped_gemm_wgrad_args const& args) {
      codes const wanted = gradients_of(args);
      index_t first = 0;
      for (index_t e = 0; e < std::ssize(call.counts); ++e) {
        index_t const count = call.counts[static_cast<std::size_t>(e)];
        test_tensor const alone = test::make_expert_begin({count});
        grouped_gemm_wgrad_args part = args;
        part.dy = call.dy.view().slice(0, first, first + count);
        part.x = call.x.view().slice(0, first, first + count);
        part.expert_begin = alone;
        codes const found = gradients_of(part);
        auto const mine = wanted.begin() + e * 45 * 77;
        EXPECT_TRUE(std::equal(mine, mine + 45 * 77, found.begin())) << "expert " << e;
        first += count;
      }
    });
  }
}

#ifndef MOE64_TEST_CUDA

// ---- widths and threads of the CPU --------------------------------------------------------------

TEST(products, every_width_gives_the_same_bits) {
  std::vector<index_t> const counts{40, 0, 5, 3, 1};
  for (weight_spec const& spec : formats()) {
    for (dtype const io : io_types) {
      for (bool const transpose : {false, true}) {
        gemm_call const call(spec, {2, 33, 160}, counts, io, content::random,
                             {transpose, !transpose, 3});
        SCOPED_TRACE(to_string(spec) + " by " + std::string(name(io)) +
                     (transpose ? ", transposed" : ""));
        codes first;
        for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
          std::string_view const name = args.implementation;
          if (name != "avx512" && name != "avx2" && name != "scalar") return;
          codes const found = product_of(args, call, counts);
          if (first.empty()) first = found;
          EXPECT_EQ(found, first);
        });
      }
    }
  }
}

TEST(products, any_threads_give_the_same_gradients) {
  for (dtype const io : io_types) {
    gradient_call const call(io);
    for_each_implementation(call.args, [&](grouped_gemm_wgrad_args const& args) {
      codes const wanted = gradients_of(args);
      for (index_t const threads : {2, 3, 7, 16}) {
        cpu_pool pool(threads);
        ASSERT_EQ(gradients_of(args, cpu_stream(&pool)), wanted) << threads << " threads";
      }
    });
  }
}

TEST(products, any_threads_give_the_same_bits) {
  std::vector<index_t> const counts{90, 0, 5, 3, 1};
  for (weight_spec const& spec : formats()) {
    for (bool const transpose : {false, true}) {
      gemm_call const call(spec, {2, 65, 160}, counts, dtype::bf16, content::random,
                           {transpose, false, 3});
      test_tensor const y(dtype::f32, {call.y.view().extent[0], call.y.view().extent[1]});
      SCOPED_TRACE(to_string(spec) + (transpose ? ", transposed" : ""));
      for_each_implementation(call.args, [&](grouped_gemm_args const& forced) {
        grouped_gemm_args args = forced;
        codes const wanted = product_of(args, call, counts);
        args.y = y;
        for (index_t threads = 1; threads <= 16; threads += is_slow(args.implementation) ? 5 : 1) {
          cpu_pool pool(threads);
          grouped_gemm(args, cpu_stream(&pool));
          ASSERT_EQ(y.codes(), wanted) << threads << " threads";
        }
      });
    }
  }
}

#endif

}  // namespace
}  // namespace moe64
