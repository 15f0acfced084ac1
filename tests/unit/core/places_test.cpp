// Tables of places: matrices that lie anywhere as one stack, and what such a stack must be.
#include "moe64/quant.hpp"
#include "support/error_matcher.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace moe64 {
namespace {

/// An address that is never looked at.
void const* at(std::uint64_t address) { return reinterpret_cast<void const*>(address); }

tensor_view made(dtype type, std::initializer_list<index_t> extents, device where = {}) {
  return tensor_view::contiguous(nullptr, type, extents, where);
}

TEST(place_matrices, counts_steps_from_the_lowest) {
  std::vector<void const*> const matrices{at(0x5000), at(0x1000), at(0x1800), at(0x5000)};
  std::vector<index_t> table(4);
  tensor_view const like = made(dtype::bf16, {8, 16}, device::cuda(3));
  tensor_view const stack = place_matrices(matrices, like, 64, table);
  EXPECT_EQ(table, (std::vector<index_t>{128, 0, 16, 128}));
  EXPECT_EQ(stack.data, at(0x1000));
  EXPECT_EQ(to_string(stack), "[129, 8, 16] bf16 cuda:3 strides 64 16 1");
  EXPECT_EQ(stack.span_bytes(), 0x4000 + 8 * 16 * 2);
}

TEST(place_matrices, keeps_strides_of_matrices_and_takes_packed_types) {
  std::vector<void const*> const matrices{at(0x3000), at(0x2010)};
  std::vector<index_t> table(2);
  tensor_view const turned = made(dtype::e4m3, {8, 16}).transposed();
  EXPECT_EQ(to_string(place_matrices(matrices, turned, 16, table)),
            "[256, 16, 8] e4m3 cpu strides 16 1 16");
  EXPECT_EQ(table, (std::vector<index_t>{255, 0}));
  EXPECT_EQ(place_matrices(matrices, made(dtype::int4, {8, 16}), 32, table).extent[0], 256);
  EXPECT_EQ(table, (std::vector<index_t>{255, 0}));
}

TEST(place_matrices, of_no_matrix_is_an_empty_stack) {
  tensor_view const stack = place_matrices({}, made(dtype::f32, {3, 4}), 4, {});
  EXPECT_EQ(to_string(stack), "[0, 3, 4] f32 cpu");
  EXPECT_EQ(quantized_view::plain(stack, {made(dtype::int64, {0}), {}}).experts(), 0);
}

TEST(place_matrices, refuses_what_is_no_whole_step_and_writes_nothing) {
  std::vector<index_t> table{7, 7};
  tensor_view const like = made(dtype::f32, {3, 4});
  auto const place = [&](void const* a, void const* b, index_t step) {
    std::vector<void const*> const matrices{a, b};
    return place_matrices(matrices, like, step, table);
  };
  EXPECT_MOE64_ERROR(place(at(0x1000), at(0x1018), 4), errc::invalid_argument,
                     "[place_matrices] matrix 1 at 0x1018 is 24 bytes behind the lowest",
                     "the step, 4 elements of f32");
  EXPECT_MOE64_ERROR(place(at(0x1000), nullptr, 4), errc::invalid_argument,
                     "matrix 1 of 2 is null");
  EXPECT_MOE64_ERROR(place(nullptr, at(0x1000), 4), errc::invalid_argument,
                     "matrix 0 of 2 is null");
  for (index_t const step : {0, -4}) {
    EXPECT_MOE64_ERROR(place(at(0x1000), at(0x2000), step), errc::invalid_argument, "a step of",
                       std::to_string(step));
  }
  EXPECT_MOE64_ERROR(place(at(0x1000), at(0x2000), std::numeric_limits<index_t>::max()),
                     errc::size_overflow);
  EXPECT_MOE64_ERROR(place(at(0x10), at(0xfffffffffffff010), 4), errc::size_overflow);
  EXPECT_MOE64_ERROR(place(at(0x10), at(0x7ffffffffffffff0), 4), errc::size_overflow);
  EXPECT_EQ(table, (std::vector<index_t>{7, 7}));
  std::vector<void const*> const three(3, at(0x1000));
  EXPECT_MOE64_ERROR(place_matrices(three, like, 4, table), errc::shape_mismatch,
                     "2 entries for 3 matrices");
  EXPECT_MOE64_ERROR(place_matrices({}, made(dtype::f32, {2, 3, 4}), 4, {}), errc::shape_mismatch,
                     "[2, 3, 4]");
  EXPECT_MOE64_ERROR(place_matrices({}, made(dtype::int4, {3, 4}), 3, {}), errc::invalid_argument,
                     "a step of 3 elements of int4");
}

TEST(expert_places, say_how_many_experts_there_are) {
  tensor_view const values = made(dtype::e4m3, {100, 8, 16}), table = made(dtype::int64, {7});
  auto const scaled = [&](tensor_view const& scales, expert_places const& places) {
    return quantized_view::scaled(values, scales, granularity::row(), {}, places);
  };
  tensor_view const in_order = made(dtype::f32, {7, 8, 1}), placed = made(dtype::f32, {9, 8, 1});
  EXPECT_EQ(scaled(in_order, {table, {}}).experts(), 7);
  EXPECT_EQ(scaled(placed, {table, table}).experts(), 7);
  EXPECT_EQ(scaled(placed, {{}, made(dtype::int64, {100})}).experts(), 100);
  EXPECT_EQ(quantized_view::plain(made(dtype::f32, {2, 3, 4}), {table, {}}).experts(), 7);

  EXPECT_MOE64_ERROR(scaled(placed, {table, {}}), errc::shape_mismatch, "needs [7, 8, 1]");
  EXPECT_MOE64_ERROR(scaled(placed, {table, made(dtype::int64, {8})}), errc::shape_mismatch,
                     "places of scales [8]", "[7]");
  EXPECT_MOE64_ERROR(scaled(made(dtype::f32, {9, 8, 2}), {table, table}), errc::shape_mismatch,
                     "needs [9, 8, 1]");
}

TEST(expert_places, gate_and_up_may_lie_in_different_stacks) {
  tensor_view const table = made(dtype::int64, {7});
  auto const part = [&](index_t places) {
    return quantized_view::plain(made(dtype::f32, {places, 3, 4}), {table, {}});
  };
  EXPECT_EQ(weight_stack::gate_up(part(5), part(9)).experts(), 7);
  EXPECT_EQ(
      weight_stack::gate_up(part(5), quantized_view::plain(made(dtype::f32, {7, 3, 4}))).experts(),
      7);
  EXPECT_MOE64_ERROR(
      weight_stack::gate_up(part(5), quantized_view::plain(made(dtype::f32, {5, 3, 4}))),
      errc::shape_mismatch, "7 experts", "of 5");
}

TEST(expert_places, a_global_scale_is_one_for_each_expert) {
  tensor_view const values = made(dtype::fp4, {100, 8, 16}), scales = made(dtype::e4m3, {9, 8, 1});
  tensor_view const table = made(dtype::int64, {7});
  auto const made_with = [&](index_t globals) {
    return quantized_view::scaled(values, scales, granularity::group(16),
                                  {made(dtype::f32, {globals})}, {table, table});
  };
  EXPECT_EQ(made_with(7).experts(), 7);
  EXPECT_MOE64_ERROR(made_with(100), errc::shape_mismatch, "global scale [100]", "[7]");
}

TEST(expert_places, that_do_not_fit_are_refused) {
  tensor_view const values = made(dtype::f32, {5, 3, 4});
  auto const plain = [&](tensor_view const& table) {
    return quantized_view::plain(values, {table, {}});
  };
  EXPECT_MOE64_ERROR(plain(made(dtype::int32, {7})), errc::dtype_mismatch, "places [7] int32");
  EXPECT_MOE64_ERROR(plain(made(dtype::int64, {7, 1})), errc::shape_mismatch, "places [7, 1]");
  EXPECT_MOE64_ERROR(plain(made(dtype::int64, {7}, device::cuda(1))), errc::device_mismatch,
                     "places are on cuda:1, values on cpu");
  tensor_view negative = made(dtype::int64, {7});
  negative.stride[0] = -1;
  EXPECT_MOE64_ERROR(plain(negative), errc::invalid_argument, "negative stride");
  EXPECT_MOE64_ERROR(
      quantized_view::plain(made(dtype::f32, {0, 3, 4}), {made(dtype::int64, {1}), {}}),
      errc::shape_mismatch, "which have none");
  EXPECT_MOE64_ERROR(quantized_view::plain(made(dtype::f32, {3, 4}), {made(dtype::int64, {1}), {}}),
                     errc::shape_mismatch, "not [places, rows, cols]");
  EXPECT_MOE64_ERROR(quantized_view::plain(values, {{}, made(dtype::int64, {5})}),
                     errc::invalid_argument, "but no scales");
}

}  // namespace
}  // namespace moe64
