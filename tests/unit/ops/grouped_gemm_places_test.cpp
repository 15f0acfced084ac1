// Weights whose matrices lie anywhere: every implementation gives the bits that it gives for the
// same weights in one stack.
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/error_matcher.hpp"
#include "support/gemm_call.hpp"
#include "support/implementations.hpp"
#include "support/places.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::content;
using test::difference;
using test::gemm_call;
using test::placed_weights;
using test::target;
using test::test_tensor;
using test::weight_spec;

/// Each implementation that takes the call, first as it is, then with the weights at places.
void expect_same_bits(gemm_call& call, weight_stack const& placed) {
  test::for_each_implementation(call.args, [&](grouped_gemm_args args) {
    grouped_gemm(args, target());
    std::vector<double> const expected = call.y.numbers();
    call.y.poison();
    args.weights = placed;
    grouped_gemm(args, target());
    EXPECT_EQ(difference(call.y.numbers(), expected), "");
  });
}

void expect_same_bits(gemm_call&& call, placed_weights::steps const& apart = {}) {
  placed_weights const placed(call.args.weights, 5, apart);
  expect_same_bits(call, placed.stack);
}

/// The same with codes for x.
void expect_same_bits_of_codes(weight_spec const& x, gemm_call&& call) {
  test::test_weights const codes =
      test::make_weights(x, 1, 1, call.args.x.rows(), call.args.x.cols(), content::random, 9);
  call.args.x = codes.stack.part(0);
  expect_same_bits(std::move(call));
}

class grouped_gemm_places : public testing::TestWithParam<weight_spec> {};

TEST_P(grouped_gemm_places, have_the_bits_of_one_stack) {
  std::vector<index_t> const counts{5, 0, 34, 1};
  int use = 0;
  for (dtype const io : {dtype::f32, dtype::bf16, dtype::f16}) {
    for (bool const transpose : {false, true}) {
      for (int const parts : {1, 2}) {
        weight_spec spec = GetParam();
        spec.layout = use++ % 2 == 0 ? gate_up_layout::concatenated : gate_up_layout::interleaved;
        spec.in_first = bits(spec.type) > 4 && use % 3 == 0;
        SCOPED_TRACE(test::to_string(spec) + " by " + std::string(name(io)) +
                     (transpose ? " transposed" : ""));
        gemm_call::extras const extra = {transpose, !transpose, use % 2 == 0 ? 3 : 0};
        // Odd extents, and those that tensor cores take.
        expect_same_bits({spec, {parts, 19, 37}, counts, io, content::random, extra},
                         {.values = 8, .scales = 4});
        expect_same_bits({spec, {parts, 48, 64}, counts, io, content::random, extra});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(every, grouped_gemm_places, testing::ValuesIn(test::every_weight_format()),
                         [](auto const& given) { return test::to_string(given.param); });

/// Rows that lead to tiles of every size.
std::vector<std::vector<index_t>> const row_counts{
    {0, 1, 7, 8, 9, 33, 0}, {31, 0, 63, 1, 64}, {127, 128, 129, 0, 65}, {256, 0, 289}};

/// Types of scales take turns.
constexpr dtype scale_types[] = {dtype::f32, dtype::bf16, dtype::e8m0};

TEST(grouped_gemm_places, codes_by_codes) {
  std::size_t use = 0;
  for (auto const& counts : row_counts) {
    for (g const scale : {g::block(128, 128), g::row(), g::tensor(), g::block(256, 128)}) {
      weight_spec const spec = {dtype::e4m3, scale, scale_types[use++ % 3]};
      SCOPED_TRACE(test::to_string(spec));
      expect_same_bits_of_codes(
          {dtype::e4m3, g::group(128)},
          {spec, {2, 160, 272}, counts, dtype::bf16, content::random, {false, use % 2 == 0, 0}});
    }
  }
  expect_same_bits_of_codes(
      {dtype::int8, g::row()},
      {{dtype::int8, g::row()}, {2, 40, 96}, row_counts[0], dtype::f32, content::random, {}});
}

TEST(grouped_gemm_places, numbers_by_codes) {
  std::size_t use = 0;
  for (auto const& counts : row_counts) {
    for (g const scale : {g::block(128, 128), g::row()}) {
      for (bool const transpose : {false, true}) {
        weight_spec const spec = {dtype::e4m3, scale, scale_types[use++ % 3]};
        SCOPED_TRACE(test::to_string(spec) + (transpose ? " transposed" : ""));
        index_t const rank = use % 5 < 2 ? 16 : 0;
        expect_same_bits({spec,
                          {2, 160, 272},
                          counts,
                          dtype::bf16,
                          content::random,
                          {transpose, !transpose, rank}});
      }
    }
  }
}

TEST(grouped_gemm_places, numbers_by_packed_codes) {
  for (auto const& counts : row_counts) {
    for (weight_spec const& spec : {weight_spec{dtype::int4, g::group(32), dtype::bf16},
                                    weight_spec{dtype::fp4, g::group(32), dtype::e8m0},
                                    weight_spec{dtype::fp4, g::group(16), dtype::e4m3}}) {
      SCOPED_TRACE(test::to_string(spec));
      expect_same_bits(
          {spec, {2, 160, 256}, counts, dtype::bf16, content::random, {false, true, 0}});
    }
  }
}

TEST(grouped_gemm_places, numbers_by_numbers) {
  for (auto const& counts : row_counts) {
    for (bool const bias : {false, true}) {
      expect_same_bits(
          {{dtype::bf16}, {2, 160, 264}, counts, dtype::bf16, content::random, {false, bias, 0}});
    }
    expect_same_bits(
        {{dtype::f16}, {1, 160, 264}, counts, dtype::f16, content::random, {true, false, 0}});
  }
}

TEST(grouped_gemm_places, of_values_or_of_scales_alone) {
  for (placed_weights::steps const apart :
       {placed_weights::steps{256, 0}, placed_weights::steps{0, 16}}) {
    for (bool const transpose : {false, true}) {
      expect_same_bits({{dtype::e4m3, g::block(128, 128)},
                        {2, 160, 272},
                        {3, 40, 0, 9},
                        dtype::bf16,
                        content::random,
                        {transpose, false, 0}},
                       apart);
    }
  }
}

/// Places of a stack without gaps: experts in another order, and two that have one matrix.
TEST(grouped_gemm_places, in_a_stack_with_replicas) {
  gemm_call call({dtype::e4m3, g::row()}, {1, 48, 64}, {4, 5, 6, 7}, dtype::bf16, content::random,
                 {});
  quantized_view const all = call.args.weights.part(0);
  test_tensor table(dtype::int64, {4});
  table.fill([](index_t e, index_t, index_t) { return e == 3 ? 1.0 : static_cast<double>(2 - e); });
  // What the call says with the matrices copied: 2 1 0 1.
  test_tensor values(dtype::e4m3, {4, 48, 64}), scales(dtype::f32, {4, 48, 1});
  for (index_t e = 0; e < 4; ++e) {
    auto const from = static_cast<index_t>(table.get(e));
    for (index_t r = 0; r < 48; ++r) {
      scales.set(call.weights.scales.get(from, r, 0), e, r, 0);
      for (index_t c = 0; c < 64; ++c)
        values.set_code(call.weights.values.code(from, r, c), e, r, c);
    }
  }
  call.args.weights = weight_stack::single(quantized_view::scaled(values, scales, g::row()));
  expect_same_bits(call, weight_stack::single(quantized_view::scaled(
                             all.values(), all.scales(), g::row(), {}, {table, table})));
}

TEST(grouped_gemm_places, follow_the_oracle) {
  gemm_call const call({dtype::fp4, g::group(16), dtype::e4m3}, {2, 19, 37}, {5}, dtype::bf16,
                       content::random, {});
  placed_weights const placed(call.args.weights, 5);
  for (index_t r = 0; r < 38; ++r) {
    for (index_t c = 0; c < 37; ++c) {
      ASSERT_EQ(oracle::at(placed.stack, 0, r, c), oracle::at(call.args.weights, 0, r, c));
    }
  }
}

// ---- what is refused ----------------------------------------------------------------------------

TEST(grouped_gemm_places, that_are_none_are_refused_on_the_cpu) {
  gemm_call const call({dtype::e4m3, g::row()}, {2, 6, 8}, {2, 3, 1}, dtype::f32, content::random,
                       {});
  placed_weights placed(call.args.weights, 5);
  grouped_gemm_args args = call.args;
  args.weights = placed.stack;
  std::vector<double> const before = call.y.numbers();
  index_t const places = placed.stack.part(1).values().extent[0];
  for (index_t const wrong : {index_t{-1}, places, index_t{1} << 62}) {
    index_t& place = placed.values_place(1, 2);
    index_t const right = place;
    place = wrong;
    EXPECT_MOE64_ERROR(grouped_gemm(args, cpu_stream()), errc::invalid_argument,
                       "[grouped_gemm] weights places of expert 2 is " + std::to_string(wrong),
                       "places 0 to " + std::to_string(places - 1));
    place = right;
  }
  placed.scales_place(0, 1) = -7;
  EXPECT_MOE64_ERROR(grouped_gemm(args, cpu_stream()), errc::invalid_argument,
                     "weights scale places of expert 1 is -7");
  EXPECT_EQ(difference(call.y.numbers(), before), "");
}

TEST(grouped_gemm_places, belong_to_weights_alone) {
  gemm_call const call({dtype::bf16}, {1, 6, 8}, {2, 1}, dtype::f32, content::random,
                       {false, false, 3});
  placed_weights const low_rank(call.args.low_rank.weights, 5);
  grouped_gemm_args args = call.args;
  args.low_rank.weights = low_rank.stack;
  EXPECT_MOE64_ERROR(grouped_gemm(args, target()), errc::unsupported, "low_rank.weights",
                     "table of places");
  test_tensor table(dtype::int64, {1});
  table.fill([](index_t, index_t, index_t) { return 0.0; });
  args = call.args;
  args.x = quantized_view::plain(call.args.x.values(), {table, {}});
  EXPECT_MOE64_ERROR(grouped_gemm(args, target()), errc::unsupported, "[grouped_gemm] x",
                     "table of places");
}

/// Between matrices may be anything, also the output; in them it may not.
TEST(grouped_gemm_places, leave_room_for_the_output_between_matrices) {
  constexpr index_t rows = 4, cols = 6, capacity = 3;
  cpu_buffer const memory(3 * rows * cols * 4 + 64);
  auto* const first = static_cast<float*>(memory.memory().data);
  std::fill(first, first + 3 * rows * cols, 0.5F);
  index_t table[2] = {0, 2 * cols * rows};
  tensor_view stack = tensor_view::contiguous(first, dtype::f32, {table[1] + 1, rows, cols});
  stack.stride[0] = 1;
  auto const args_with = [&](float* y) {
    static index_t const begin[] = {0, 1, capacity};
    static float const x[capacity * cols] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1};
    return grouped_gemm_args{
        .x = quantized_view::plain(tensor_view::contiguous(x, dtype::f32, {capacity, cols})),
        .weights = weight_stack::single(
            quantized_view::plain(stack, {tensor_view::contiguous(table, dtype::int64, {2}), {}})),
        .expert_begin = tensor_view::contiguous(begin, dtype::int64, {3}),
        .y = tensor_view::contiguous(y, dtype::f32, {capacity, rows})};
  };
  float* const between = first + rows * cols;
  grouped_gemm(args_with(between), cpu_stream());
  for (index_t i = 0; i < capacity * rows; ++i) {
    EXPECT_EQ(between[i], i / rows == 1 ? 6.0F : 3.0F) << i;
  }
  EXPECT_MOE64_ERROR(grouped_gemm(args_with(between - 1), cpu_stream()), errc::invalid_argument,
                     "output y", "overlaps weights");
  EXPECT_MOE64_ERROR(grouped_gemm(args_with(first + 2 * rows * cols), cpu_stream()),
                     errc::invalid_argument, "output y", "overlaps weights");
  auto const on_table = reinterpret_cast<float*>(table);
  EXPECT_MOE64_ERROR(grouped_gemm(args_with(on_table), cpu_stream()), errc::invalid_argument,
                     "output y", "overlaps weights places");
}

}  // namespace
}  // namespace moe64
