// gather.
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "unit/ops/varied_plan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

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

constexpr dtype every_type[] = {dtype::f32,   dtype::bf16,  dtype::f16,   dtype::e4m3,
                                dtype::e5m2,  dtype::int8,  dtype::int4,  dtype::fp4,
                                dtype::int32, dtype::int64, dtype::uint8, dtype::e8m0};

/// Any bits at all: codes of floats that are not numbers are moved like others.
void fill_bits(test_tensor& tensor, std::uint64_t seed) {
  test::random_source const random(seed);
  tensor_view const& v = tensor.view();
  std::uint64_t const mask =
      bits(v.type) == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits(v.type)) - 1;
  for (index_t i = 0; i < v.extent[0]; ++i) {
    for (index_t j = 0; j < v.extent[1]; ++j) {
      tensor.set_code(random.bits(i * v.extent[1] + j) & mask, i, j);
    }
  }
}

TEST(gather, moves_the_bits_of_every_type) {
  test_plan const p = varied_plan();
  ASSERT_GT(p.rows.dropped + p.rows.skipped, 5);
  for (dtype const type : every_type) {
    for (index_t const hidden : {1, 15, 64, 700}) {
      SCOPED_TRACE(std::string(name(type)) + " hidden " + std::to_string(hidden));
      test_tensor x(type, {23, hidden}), scales;
      fill_bits(x, 8);
      test_tensor const rows(type, {69, hidden});
      test_tensor row_scales;
      if (is_quantized(type)) {
        scales = test_tensor(dtype::f32, {23, 2});
        scales.fill_uniform(1);
        row_scales = test_tensor(dtype::f32, {69, 2});
      }
      for_each_implementation(
          gather_args{x, scales, p.plan, false, rows, row_scales}, [&](gather_args const& args) {
            gather(args, target());
            for (index_t row = 0; row < 69; ++row) {
              bool const live = row < p.live();
              index_t const token = live ? p.rows.row_to_slot[place(row)] / 3 : 0;
              for (index_t c = 0; c < hidden; ++c) {
                std::uint64_t const poison = test_tensor(type, {1}).code(0);
                ASSERT_EQ(rows.code(row, c), live ? x.code(token, c) : poison) << row << "," << c;
              }
              for (index_t c = 0; is_quantized(type) && c < 2; ++c) {
                if (live) {
                  ASSERT_EQ(row_scales.get(row, c), scales.get(token, c));
                } else {
                  ASSERT_TRUE(std::isnan(row_scales.get(row, c)));
                }
              }
            }
          });
    }
  }
}

TEST(gather, scales_of_every_type_move_along) {
  test_plan const p = varied_plan();
  for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16, dtype::e8m0, dtype::e4m3}) {
    test_tensor x(dtype::e4m3, {23, 8}), scales(type, {23, 3}, {7, 2});
    fill_bits(x, 2);
    fill_bits(scales, 3);
    test_tensor const rows(dtype::e4m3, {69, 8}), row_scales(type, {69, 3}, {1, 70});
    gather({x, scales, p.plan, false, rows, row_scales}, target());
    for (index_t row = 0; row < p.live(); ++row) {
      index_t const token = p.rows.row_to_slot[place(row)] / 3;
      for (index_t c = 0; c < 3; ++c) ASSERT_EQ(row_scales.code(row, c), scales.code(token, c));
    }
  }
}

TEST(gather, strided_operands) {
  test_plan const p = varied_plan();
  for (dtype const type : {dtype::f32, dtype::bf16, dtype::int64, dtype::int8}) {
    test_tensor x(type, {23, 9}, {1, 25}), scales, row_scales;
    fill_bits(x, 3);
    test_tensor const rows(type, {69, 9}, {30, 3});
    if (type == dtype::int8) {
      scales = test_tensor(dtype::f32, {23, 1});
      scales.fill_uniform(3);
      row_scales = test_tensor(dtype::f32, {69, 1});
    }
    gather({x, scales, p.plan, false, rows, row_scales}, target());
    for (index_t row = 0; row < p.live(); ++row) {
      index_t const token = p.rows.row_to_slot[place(row)] / 3;
      for (index_t c = 0; c < 9; ++c) ASSERT_EQ(rows.code(row, c), x.code(token, c));
    }
  }
}

TEST(gather, weighted_is_one_product_and_one_rounding) {
  test_plan const p = varied_plan();
  for (dtype const type : float_types) {
    test_tensor x(type, {23, 530});
    x.fill_uniform(7, -300.0, 300.0);
    test_tensor const rows(type, {69, 530});
    for_each_implementation(
        gather_args{x, {}, p.plan, true, rows, {}}, [&](gather_args const& args) {
          gather(args, target());
          for (index_t row = 0; row < p.live(); ++row) {
            index_t const slot = p.rows.row_to_slot[place(row)];
            for (index_t c = 0; c < 530; ++c) {
              double const product =
                  oracle::round_to(p.slot_weight.get(slot) * x.get(slot / 3, c), dtype::f32);
              ASSERT_EQ(rows.get(row, c), oracle::round_to(product, type)) << row << "," << c;
            }
          }
        });
  }
}

TEST(gather, tokens_without_a_row_are_never_read) {
  test_plan const p =
      make_plan({.tokens = 3, .top_k = 2, .experts = 2, .ids = {-1, 2, 1, -1, 2, 2}});
  test_tensor x(dtype::f32, {3, 4});
  x.fill([](index_t t, index_t c, index_t) { return t == 1 ? static_cast<double>(c) : nan; });
  for (bool const weighted : {false, true}) {
    test_tensor const rows(dtype::f32, {6, 4});
    gather({x, {}, p.plan, weighted, rows, {}}, target());
    EXPECT_EQ(
        difference(rows.numbers(), {0,   1,   2,   3,   nan, nan, nan, nan, nan, nan, nan, nan,
                                    nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan}),
        "");
  }
}

TEST(gather, refuses_codes_without_scales_and_weighted_codes) {
  test_plan const p = varied_plan();
  test_tensor const x(dtype::e4m3, {23, 4}), rows(dtype::e4m3, {69, 4});
  test_tensor const scales(dtype::f32, {23, 1}), row_scales(dtype::f32, {69, 1});
  EXPECT_MOE64_ERROR(gather({x, {}, p.plan, false, rows, {}}, target()), errc::missing_scale,
                     "[gather]", "e4m3");
  EXPECT_MOE64_ERROR(gather({x, scales, p.plan, false, rows, {}}, target()), errc::invalid_argument,
                     "row_scales");
  EXPECT_MOE64_ERROR(gather({x, scales, p.plan, true, rows, row_scales}, target()),
                     errc::dtype_mismatch, "weighted");
}

}  // namespace
}  // namespace moe64
