#include "moe64/quant.hpp"

#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace moe64 {
namespace {

using g = granularity;
using testing::ElementsAre;

constexpr index_t most = std::numeric_limits<index_t>::max();

/// A view whose memory is never looked at.
tensor_view made(dtype type, std::initializer_list<index_t> extents, device where = {}) {
  return tensor_view::contiguous(nullptr, type, extents, where);
}

TEST(granularity, grids_with_partial_blocks) {
  EXPECT_EQ(g::block(128, 128).grid_rows(704), 6);
  EXPECT_EQ(g::block(128, 128).grid_cols(2048), 16);
  EXPECT_EQ(g::block(3, 5).grid_rows(7), 3);
  EXPECT_EQ(g::block(3, 5).grid_cols(11), 3);
  EXPECT_EQ(g::block(1, 1).grid_rows(9), 9);
  EXPECT_EQ(g::tensor().grid_rows(9), 1);
  EXPECT_EQ(g::tensor().grid_cols(9), 1);
  EXPECT_EQ(g::row().grid_rows(9), 9);
  EXPECT_EQ(g::row().grid_cols(9), 1);
  EXPECT_EQ(g::group(32).grid_rows(9), 9);
  EXPECT_EQ(g::group(32).grid_cols(33), 2);
  for (g const& layout : {g::tensor(), g::row(), g::block(4, 4), g::group(4)}) {
    EXPECT_EQ(layout.grid_rows(0), 0) << to_string(layout);
    EXPECT_EQ(layout.grid_cols(0), 0) << to_string(layout);
    EXPECT_GE(layout.rows_per_scale(0), 1) << to_string(layout);
    EXPECT_GE(layout.cols_per_scale(0), 1) << to_string(layout);
  }
}

TEST(granularity, words_parse_back) {
  for (g const& layout : {g::none(), g::tensor(), g::row(), g::block(128, 128), g::block(1, 7),
                          g::group(32), g::group(most)}) {
    EXPECT_EQ(parse_granularity(to_string(layout)), layout) << to_string(layout);
  }
  EXPECT_EQ(to_string(g::block(128, 64)), "block:128x64");
  EXPECT_EQ(to_string(g::group(32)), "group:32");
  for (char const* wrong :
       {"", "block", "block:", "block:128", "block:128x", "block:x128", "block:0x1", "block:1x0",
        "block:-1x1", "block:1x1x1", "block: 1x1", "group:", "group:0", "group:-3", "group:3x3",
        "group:99999999999999999999", "rows", "TENSOR", "tensor "}) {
    EXPECT_EQ(parse_granularity(wrong), std::nullopt) << wrong;
  }
}

TEST(quantized_view, plain_takes_numbers_only) {
  EXPECT_TRUE(quantized_view::plain(made(dtype::bf16, {2, 3, 4})).is_plain());
  EXPECT_EQ(quantized_view::plain(made(dtype::f32, {3, 4})).experts(), 1);
  EXPECT_FALSE(quantized_view{}.present());
  for (dtype const type : {dtype::e4m3, dtype::e5m2, dtype::int8, dtype::int4, dtype::fp4}) {
    EXPECT_MOE64_ERROR(quantized_view::plain(made(type, {2, 3, 4})), errc::missing_scale,
                       name(type), "[2, 3, 4]");
  }
  for (dtype const type : {dtype::e8m0, dtype::int32, dtype::int64, dtype::uint8}) {
    EXPECT_MOE64_ERROR(quantized_view::plain(made(type, {2, 3, 4})), errc::dtype_mismatch,
                       name(type));
  }
  EXPECT_MOE64_ERROR(quantized_view::plain(made(dtype::f32, {4})), errc::shape_mismatch, "[4]");
  EXPECT_MOE64_ERROR(quantized_view::plain(tensor_view{}), errc::shape_mismatch);
  tensor_view negative = made(dtype::f32, {2, 3, 4});
  negative.stride[1] = -4;
  EXPECT_MOE64_ERROR(quantized_view::plain(negative), errc::invalid_argument, "negative");
}

TEST(quantized_view, codes_need_their_scale) {
  tensor_view const values = made(dtype::e4m3, {2, 300, 200});
  tensor_view const scales = made(dtype::f32, {2, 3, 2});
  quantized_view const q = quantized_view::scaled(values, scales, g::block(128, 128));
  EXPECT_FALSE(q.is_plain());
  EXPECT_EQ(q.rows(), 300);
  EXPECT_EQ(q.cols(), 200);
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, {}, g::block(128, 128)), errc::missing_scale,
                     "[2, 300, 200]", "absent");
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, g::none()), errc::missing_scale,
                     "none");
  EXPECT_MOE64_ERROR(quantized_view::scaled(made(dtype::bf16, {2, 300, 200}), scales, g::tensor()),
                     errc::dtype_mismatch, "bf16");
  for (dtype const type : {dtype::e5m2, dtype::int8, dtype::int4, dtype::int64}) {
    EXPECT_MOE64_ERROR(quantized_view::scaled(values, made(type, {2, 3, 2}), g::block(128, 128)),
                       errc::dtype_mismatch, name(type));
  }
}

TEST(quantized_view, every_scale_shape_that_does_not_match_is_refused) {
  tensor_view const values = made(dtype::e4m3, {2, 300, 200});
  struct wrong {
    g layout;
    index_t experts, rows, cols;
  };
  for (wrong const& w :
       {wrong{g::block(128, 128), 2, 2, 2}, wrong{g::block(128, 128), 2, 3, 3},
        wrong{g::block(128, 128), 1, 3, 2}, wrong{g::block(128, 64), 2, 3, 2},
        wrong{g::tensor(), 2, 1, 2}, wrong{g::tensor(), 1, 1, 1}, wrong{g::tensor(), 2, 300, 1},
        wrong{g::row(), 2, 1, 1}, wrong{g::row(), 2, 300, 200}, wrong{g::row(), 2, 299, 1},
        wrong{g::group(32), 2, 300, 6}, wrong{g::group(32), 2, 300, 8},
        wrong{g::group(32), 2, 10, 7}}) {
    tensor_view const scales = made(dtype::f32, {w.experts, w.rows, w.cols});
    EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, w.layout), errc::shape_mismatch,
                       to_string(scales), to_string(values), to_string(w.layout));
  }
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, made(dtype::f32, {3, 2}), g::block(128, 128)),
                     errc::shape_mismatch);
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, made(dtype::f32, {2}), g::tensor()),
                     errc::shape_mismatch);
  EXPECT_NO_THROW(static_cast<void>(
      quantized_view::scaled(made(dtype::int8, {300, 200}), made(dtype::f32, {300, 1}), g::row())));
}

TEST(quantized_view, blocks_and_places_are_checked) {
  tensor_view const values = made(dtype::e4m3, {2, 4, 4});
  tensor_view const scales = made(dtype::f32, {2, 1, 1});
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, g::block(0, 4)), errc::invalid_argument,
                     "block:0x4");
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, g::block(4, -1)),
                     errc::invalid_argument);
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, g::group(0)), errc::invalid_argument);
  EXPECT_MOE64_ERROR(
      quantized_view::scaled(values, made(dtype::f32, {2, 1, 1}, device::cuda(1)), g::tensor()),
      errc::device_mismatch, "cuda:1", "cpu");
  tensor_view negative = scales;
  negative.stride[0] = -1;
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, negative, g::tensor()), errc::invalid_argument,
                     "negative");
}

TEST(quantized_view, packed_rows_must_be_bytes) {
  tensor_view const values = made(dtype::int4, {2, 4, 6});
  tensor_view const scales = made(dtype::f32, {2, 4, 1});
  EXPECT_NO_THROW(static_cast<void>(quantized_view::scaled(values, scales, g::row())));
  EXPECT_MOE64_ERROR(
      quantized_view::scaled(values.transposed(), made(dtype::f32, {2, 6, 1}), g::row()),
      errc::invalid_argument, "packed");
  tensor_view odd = values;
  odd.stride[1] = 7;
  EXPECT_MOE64_ERROR(quantized_view::scaled(odd, scales, g::row()), errc::invalid_argument,
                     "whole bytes");
}

TEST(quantized_view, nvfp4_needs_its_global_scale_and_nothing_else_may_have_one) {
  tensor_view const values = made(dtype::fp4, {2, 4, 32});
  tensor_view const scales = made(dtype::e4m3, {2, 4, 2});
  global_scale const global{made(dtype::f32, {2})};
  EXPECT_NO_THROW(static_cast<void>(quantized_view::scaled(values, scales, g::group(16), global)));
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, g::group(16)), errc::missing_scale,
                     "global");
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, g::group(16), {made(dtype::f32, {3})}),
                     errc::shape_mismatch, "[3]");
  EXPECT_MOE64_ERROR(
      quantized_view::scaled(values, scales, g::group(16), {made(dtype::f32, {2, 1})}),
      errc::shape_mismatch);
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, g::group(16), {made(dtype::bf16, {2})}),
                     errc::dtype_mismatch, "bf16");
  EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, g::group(16),
                                            {made(dtype::f32, {2}, device::cuda(0))}),
                     errc::device_mismatch, "cuda:0");
  EXPECT_MOE64_ERROR(
      quantized_view::scaled(values, made(dtype::e8m0, {2, 4, 2}), g::group(16), global),
      errc::invalid_argument, "global", "e8m0");
  EXPECT_MOE64_ERROR(
      quantized_view::scaled(made(dtype::e4m3, {2, 4, 32}), scales, g::group(16), global),
      errc::invalid_argument, "e4m3");
}

TEST(split_gate_up, halves_or_every_other_row) {
  test::test_tensor fused(dtype::int32, {2, 6, 3});
  fused.fill(
      [](index_t e, index_t r, index_t c) { return static_cast<double>(100 * e + 10 * r + c); });
  auto const [gate, up] = split_gate_up(fused, gate_up_layout::concatenated);
  EXPECT_EQ(oracle::at(gate, 1, 2, 1), 121.0);
  EXPECT_EQ(oracle::at(up, 1, 0, 2), 132.0);
  auto const [even, odd] = split_gate_up(fused, gate_up_layout::interleaved);
  EXPECT_EQ(oracle::at(even, 1, 2, 1), 141.0);
  EXPECT_EQ(oracle::at(odd, 0, 1, 0), 30.0);
  EXPECT_EQ(even.extent[1], 3);
  auto const [bias_even, bias_odd] =
      split_gate_up(fused.view().slice(2, 0, 1).slice(0, 0, 1).as_matrix().transposed(),
                    gate_up_layout::interleaved);
  EXPECT_EQ(oracle::at(bias_odd, 0, 2), 50.0);
  EXPECT_EQ(bias_even.extent[1], 3);
  EXPECT_MOE64_ERROR(split_gate_up(made(dtype::f32, {2, 5, 3}), gate_up_layout::concatenated),
                     errc::shape_mismatch, "[2, 5, 3]");
  EXPECT_MOE64_ERROR(split_gate_up(made(dtype::f32, {4}), gate_up_layout::concatenated),
                     errc::shape_mismatch);
  EXPECT_EQ(name(gate_up_layout::interleaved), "interleaved");
}

TEST(weight_stack, gate_and_up_have_their_own_grids) {
  // 704 = 5 * 128 + 64: one grid over the fused 1408 rows would have 11 scale rows, not 6 + 6.
  test::test_weights const w = test::make_weights({dtype::e4m3, g::block(128, 128)}, 2, 2, 704, 130,
                                                  test::content::random, 1);
  EXPECT_THAT(w.scales.view().extent, ElementsAre(2, 12, 2));
  EXPECT_EQ(w.stack.part(1).scales().extent[1], 6);
  EXPECT_EQ(w.stack.rows(), 1408);
  EXPECT_EQ(w.stack.part_rows(), 704);
  for (index_t const row : {0, 127, 128, 703, 704, 831, 832, 1407}) {
    index_t const scale_row = row < 704 ? row / 128 : 6 + (row - 704) / 128;
    double const expected = w.values.get(1, row, 129) * w.scales.get(1, scale_row, 1);
    EXPECT_EQ(oracle::at(w.stack, 1, row, 129), double{static_cast<float>(expected)}) << row;
  }
  tensor_view const half = w.values.view().slice(1, 0, 704);
  EXPECT_MOE64_ERROR(
      quantized_view::scaled(half, w.scales.view().slice(1, 0, 11), g::block(128, 128)),
      errc::shape_mismatch);
}

TEST(weight_stack, parts_must_agree) {
  auto const scaled = [](dtype type, dtype scale, index_t rows, g layout) {
    return quantized_view::scaled(made(type, {2, rows, 256}),
                                  made(scale, {2, layout.grid_rows(rows), layout.grid_cols(256)}),
                                  layout);
  };
  quantized_view const gate = scaled(dtype::e4m3, dtype::f32, 128, g::block(128, 128));
  weight_stack const both = weight_stack::gate_up(gate, gate);
  EXPECT_EQ(both.parts(), 2);
  EXPECT_EQ(both.rows(), 256);
  EXPECT_EQ(weight_stack::single(gate).parts(), 1);
  EXPECT_FALSE(weight_stack{}.present());
  EXPECT_MOE64_ERROR(
      weight_stack::gate_up(gate, scaled(dtype::e4m3, dtype::f32, 129, g::block(128, 128))),
      errc::shape_mismatch, "[2, 128, 256]", "[2, 129, 256]");
  EXPECT_MOE64_ERROR(
      weight_stack::gate_up(gate, scaled(dtype::e5m2, dtype::f32, 128, g::block(128, 128))),
      errc::dtype_mismatch, "e5m2");
  EXPECT_MOE64_ERROR(
      weight_stack::gate_up(gate, scaled(dtype::e4m3, dtype::bf16, 128, g::block(128, 128))),
      errc::dtype_mismatch, "bf16");
  EXPECT_MOE64_ERROR(weight_stack::gate_up(gate, scaled(dtype::e4m3, dtype::f32, 128, g::row())),
                     errc::invalid_argument, "row", "block:128x128");
  EXPECT_MOE64_ERROR(
      weight_stack::gate_up(gate, quantized_view::plain(made(dtype::bf16, {2, 128, 256}))),
      errc::dtype_mismatch);
  EXPECT_MOE64_ERROR(weight_stack::gate_up(gate, {}), errc::invalid_argument, "up is absent");
  EXPECT_MOE64_ERROR(weight_stack::gate_up({}, gate), errc::invalid_argument, "gate is absent");
  EXPECT_MOE64_ERROR(weight_stack::single({}), errc::invalid_argument, "absent");
  quantized_view const elsewhere =
      quantized_view::scaled(made(dtype::e4m3, {2, 128, 256}, device::cuda(0)),
                             made(dtype::f32, {2, 1, 2}, device::cuda(0)), g::block(128, 128));
  EXPECT_MOE64_ERROR(weight_stack::gate_up(gate, elsewhere), errc::device_mismatch, "cuda:0");
}

TEST(weight_stack, nvfp4_parts_must_apply_their_global_scale_alike) {
  auto const part = [](global_scale::direction applied) {
    return quantized_view::scaled(made(dtype::fp4, {1, 4, 32}), made(dtype::e4m3, {1, 4, 2}),
                                  g::group(16), {made(dtype::f32, {1}), applied});
  };
  EXPECT_MOE64_ERROR(weight_stack::gate_up(part(global_scale::direction::multiply),
                                           part(global_scale::direction::divide)),
                     errc::invalid_argument);
}

}  // namespace
}  // namespace moe64
