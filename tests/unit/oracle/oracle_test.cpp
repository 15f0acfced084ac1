// The oracle against values worked out by hand from the definitions: nothing here comes from a run
// of it.
#include "oracle/oracle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace moe64 {
namespace {

using testing::ElementsAre;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr float f32_nan = std::numeric_limits<float>::quiet_NaN();

double decode8(std::uint8_t code, dtype type) { return oracle::load(&code, type, 0); }
double decode16(std::uint16_t code, dtype type) { return oracle::load(&code, type, 0); }

TEST(oracle_numbers, e4m3_follows_its_definition) {
  EXPECT_EQ(decode8(0x7e, dtype::e4m3), 448.0);
  EXPECT_EQ(decode8(0xfe, dtype::e4m3), -448.0);
  EXPECT_EQ(decode8(0x38, dtype::e4m3), 1.0);
  EXPECT_EQ(decode8(0x39, dtype::e4m3), 1.125);
  EXPECT_EQ(decode8(0x78, dtype::e4m3),
            256.0);  // an exponent of all ones is an ordinary number here
  EXPECT_EQ(decode8(0x08, dtype::e4m3), 0x1p-6);
  EXPECT_EQ(decode8(0x07, dtype::e4m3), 7 * 0x1p-9);
  EXPECT_EQ(decode8(0x01, dtype::e4m3), 0x1p-9);
  EXPECT_EQ(decode8(0x80, dtype::e4m3), 0.0);
  EXPECT_TRUE(std::signbit(decode8(0x80, dtype::e4m3)));
  EXPECT_TRUE(std::isnan(decode8(0x7f, dtype::e4m3)));
  EXPECT_TRUE(std::isnan(decode8(0xff, dtype::e4m3)));
}

TEST(oracle_numbers, e5m2_follows_its_definition) {
  EXPECT_EQ(decode8(0x7b, dtype::e5m2), 57344.0);
  EXPECT_EQ(decode8(0x3c, dtype::e5m2), 1.0);
  EXPECT_EQ(decode8(0xbd, dtype::e5m2), -1.25);
  EXPECT_EQ(decode8(0x04, dtype::e5m2), 0x1p-14);
  EXPECT_EQ(decode8(0x01, dtype::e5m2), 0x1p-16);
  EXPECT_EQ(decode8(0x7c, dtype::e5m2), infinity);
  EXPECT_EQ(decode8(0xfc, dtype::e5m2), -infinity);
  EXPECT_TRUE(std::isnan(decode8(0x7d, dtype::e5m2)));
  EXPECT_TRUE(std::isnan(decode8(0xff, dtype::e5m2)));
}

TEST(oracle_numbers, e8m0_is_a_power_of_two) {
  EXPECT_EQ(decode8(0, dtype::e8m0), 0x1p-127);
  EXPECT_EQ(decode8(127, dtype::e8m0), 1.0);
  EXPECT_EQ(decode8(130, dtype::e8m0), 8.0);
  EXPECT_EQ(decode8(254, dtype::e8m0), 0x1p+127);
  EXPECT_TRUE(std::isnan(decode8(255, dtype::e8m0)));
}

TEST(oracle_numbers, packed_types_keep_the_even_element_in_the_lower_nibble) {
  std::array<std::uint8_t, 8> all_codes{};
  for (std::uint8_t i = 0; i < 8; ++i) {
    all_codes[i] = static_cast<std::uint8_t>(((2 * i + 1) << 4) | (2 * i));
  }
  std::array<double, 16> const fp4{0.0,  0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
                                   -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};
  std::array<double, 16> const int4{0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
  for (index_t i = 0; i < 16; ++i) {
    auto const element = static_cast<std::size_t>(i);
    EXPECT_EQ(oracle::load(all_codes.data(), dtype::fp4, i), fp4[element]) << i;
    EXPECT_EQ(oracle::load(all_codes.data(), dtype::int4, i), int4[element]) << i;
  }
}

TEST(oracle_numbers, wider_types) {
  EXPECT_EQ(decode16(0x3f80, dtype::bf16), 1.0);
  EXPECT_EQ(decode16(0xc049, dtype::bf16), -3.140625);
  EXPECT_EQ(decode16(0x0001, dtype::bf16), 0x1p-133);
  EXPECT_EQ(decode16(0x7f80, dtype::bf16), infinity);
  EXPECT_TRUE(std::isnan(decode16(0x7fc0, dtype::bf16)));
  EXPECT_EQ(decode16(0x3c00, dtype::f16), 1.0);
  EXPECT_EQ(decode16(0x7bff, dtype::f16), 65504.0);
  EXPECT_EQ(decode16(0x0400, dtype::f16), 0x1p-14);
  EXPECT_EQ(decode16(0x8001, dtype::f16), -0x1p-24);
  EXPECT_EQ(decode16(0xfc00, dtype::f16), -infinity);
  EXPECT_TRUE(std::isnan(decode16(0x7c01, dtype::f16)));
  float const f32 = -0x1.8p-149F * 2;
  EXPECT_EQ(oracle::load(&f32, dtype::f32, 0), double{f32});
  std::int64_t const big = -(std::int64_t{1} << 40);
  EXPECT_EQ(oracle::load(&big, dtype::int64, 0), -0x1p+40);
  std::array<std::int32_t, 2> const ids{7, -1};
  EXPECT_EQ(oracle::load(ids.data(), dtype::int32, 1), -1.0);
  EXPECT_EQ(decode8(0x80, dtype::int8), -128.0);
  EXPECT_EQ(decode8(0xff, dtype::uint8), 255.0);
}

TEST(oracle_numbers, rounding_is_to_nearest_even) {
  EXPECT_EQ(oracle::round_to(1.0625, dtype::e4m3), 1.0);   // between 1 and 1.125: even mantissa
  EXPECT_EQ(oracle::round_to(1.1875, dtype::e4m3), 1.25);  // between 1.125 and 1.25
  EXPECT_EQ(oracle::round_to(1.0626, dtype::e4m3), 1.125);
  EXPECT_EQ(oracle::round_to(0x1p-10, dtype::e4m3), 0.0);  // half of the smallest
  EXPECT_EQ(oracle::round_to(0x1.8p-9, dtype::e4m3), 0x1p-8);
  EXPECT_EQ(oracle::round_to(-463.9, dtype::e4m3), -448.0);
  EXPECT_EQ(oracle::round_to(1e9, dtype::e4m3), 448.0);
  EXPECT_EQ(oracle::round_to(infinity, dtype::e5m2), 57344.0);
  EXPECT_EQ(oracle::round_to(2.5, dtype::fp4), 2.0);
  EXPECT_EQ(oracle::round_to(3.5, dtype::fp4), 4.0);
  EXPECT_EQ(oracle::round_to(0.25, dtype::fp4), 0.0);
  EXPECT_EQ(oracle::round_to(0.75, dtype::fp4), 1.0);
  EXPECT_EQ(oracle::round_to(-5.0, dtype::fp4), -4.0);
  EXPECT_EQ(oracle::round_to(100.0, dtype::fp4), 6.0);
  EXPECT_EQ(oracle::round_to(2.5, dtype::int8), 2.0);
  EXPECT_EQ(oracle::round_to(-3.5, dtype::int8), -4.0);
  EXPECT_EQ(oracle::round_to(-1e9, dtype::int8), -128.0);
  EXPECT_EQ(oracle::round_to(9.0, dtype::int4), 7.0);
  EXPECT_EQ(oracle::round_to(65520.0, dtype::f16), infinity);
  EXPECT_EQ(oracle::round_to(65519.9, dtype::f16), 65504.0);
  EXPECT_EQ(oracle::round_to(1.0 + 0x1p-8, dtype::bf16), 1.0);
  EXPECT_EQ(oracle::round_to(1.0 + 0x1.8p-7, dtype::bf16), 1.0 + 0x1p-6);
  EXPECT_EQ(oracle::round_to(1.0 + 0x1p-24, dtype::f32), 1.0);
  EXPECT_EQ(oracle::round_to(0x1p-150, dtype::f32), 0.0);
  EXPECT_EQ(oracle::round_to(0x1.ffffffp+127, dtype::f32), infinity);
  EXPECT_EQ(oracle::round_to(0x1.fffffefp+127, dtype::f32), 0x1.fffffep+127);
  EXPECT_EQ(oracle::round_to(1.0, dtype::e8m0), 1.0);
  EXPECT_EQ(oracle::round_to(1.001, dtype::e8m0), 2.0);
  EXPECT_EQ(oracle::round_to(0x1p-140, dtype::e8m0), 0x1p-127);
  EXPECT_TRUE(std::signbit(oracle::round_to(-0.0, dtype::bf16)));
}

TEST(oracle_numbers, a_view_is_read_through_its_strides) {
  std::array<float, 12> const numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  tensor_view view;
  view.data = const_cast<float*>(numbers.data());
  view.rank = 3;
  view.extent[0] = 2, view.extent[1] = 2, view.extent[2] = 3;
  view.stride[0] = 6, view.stride[1] = 1, view.stride[2] = 2;
  EXPECT_EQ(oracle::at(view, 1, 1, 2), 11.0);
  EXPECT_EQ(oracle::at(view, 1, 0, 1), 8.0);
}

TEST(oracle_numbers, each_granularity_finds_its_scale) {
  std::array<std::int8_t, 12> const codes{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};  // [3, 4]
  std::array<float, 6> const scales{2, 3, 5, 7, 11, 13};
  auto const values = tensor_view::contiguous(codes.data(), dtype::int8, {3, 4});
  auto const number = [&](granularity layout, index_t row, index_t col) {
    auto const grid = tensor_view::contiguous(scales.data(), dtype::f32,
                                              {layout.grid_rows(3), layout.grid_cols(4)});
    return oracle::at(quantized_view::scaled(values, grid, layout), 0, row, col);
  };
  EXPECT_EQ(number(granularity::tensor(), 2, 3), 2.0);
  EXPECT_EQ(number(granularity::row(), 2, 3), 5.0);
  EXPECT_EQ(number(granularity::group(3), 1, 2), 5.0);
  EXPECT_EQ(number(granularity::group(3), 2, 3), 13.0);
  EXPECT_EQ(number(granularity::block(2, 3), 1, 3), 3.0);
  EXPECT_EQ(number(granularity::block(2, 3), 2, 0), 5.0);
}

TEST(oracle_numbers, a_global_scale_multiplies_or_divides) {
  std::array<std::uint8_t, 2> const codes{0x75, 0x0f};   // [2, 2]: 3, 6 and -6, 0
  std::array<std::uint8_t, 2> const scales{0x38, 0x40};  // 1 and 2
  std::array<float, 1> const global{0.25F};
  auto const values = tensor_view::contiguous(codes.data(), dtype::fp4, {2, 2});
  auto const grid = tensor_view::contiguous(scales.data(), dtype::e4m3, {2, 1});
  auto const factor = tensor_view::contiguous(global.data(), dtype::f32, {1});
  auto const multiplied = quantized_view::scaled(values, grid, granularity::group(16),
                                                 {factor, global_scale::direction::multiply});
  auto const divided = quantized_view::scaled(values, grid, granularity::group(16),
                                              {factor, global_scale::direction::divide});
  EXPECT_EQ(oracle::at(multiplied, 0, 0, 0), 0.75);
  EXPECT_EQ(oracle::at(multiplied, 0, 1, 0), -3.0);
  EXPECT_EQ(oracle::at(divided, 0, 0, 1), 24.0);
  EXPECT_EQ(oracle::at(divided, 0, 1, 0), -48.0);
}

// ---- quantize -----------------------------------------------------------------------------------

oracle::quantized_matrix quantized(std::vector<float> const& x, index_t rows, dtype code,
                                   dtype scale, granularity layout, global_scale global = {}) {
  index_t const cols = std::ssize(x) / rows;
  return oracle::quantize(tensor_view::contiguous(x.data(), dtype::f32, {rows, cols}), code, scale,
                          layout, global);
}

TEST(oracle_quantize, scale_is_the_peak_over_the_largest_code) {
  auto const q = quantized({1, -127, 63.5, 2.5}, 1, dtype::int8, dtype::f32, granularity::row());
  EXPECT_THAT(q.scales, ElementsAre(1.0));
  EXPECT_THAT(q.codes, ElementsAre(1.0, -127.0, 64.0, 2.0));
  auto const e4m3 = quantized({896, -1, 0, 3}, 1, dtype::e4m3, dtype::f32, granularity::group(2));
  EXPECT_THAT(e4m3.scales, ElementsAre(2.0, double{3.0F / 448.0F}));
  EXPECT_THAT(e4m3.codes, ElementsAre(448.0, -0.5, 0.0, 448.0));
  auto const e5m2 = quantized({57344, 1.1F}, 1, dtype::e5m2, dtype::f32, granularity::tensor());
  EXPECT_THAT(e5m2.codes, ElementsAre(57344.0, 1.0));
}

TEST(oracle_quantize, the_grid_has_partial_blocks) {
  auto const q = quantized({7, 14, 4, 7, 0, 14, 3, 0, 35}, 3, dtype::int4, dtype::f32,
                           granularity::block(2, 2));
  EXPECT_THAT(q.scales, ElementsAre(2.0, 2.0, double{3.0F / 7.0F}, 5.0));
  EXPECT_THAT(q.codes, ElementsAre(4, 7, 2, 4, 0, 7, 7, 0, 7));  // 7 / 2 goes to even
}

TEST(oracle_quantize, e8m0_scales_go_up_so_that_nothing_saturates) {
  auto const q =
      quantized({6, 6.5, 0, 0, 3, 1}, 3, dtype::fp4, dtype::e8m0, granularity::group(32));
  EXPECT_THAT(q.scales, ElementsAre(2.0, 1.0, 0.5));
  EXPECT_THAT(q.codes, ElementsAre(3, 3, 0, 0, 6, 2));
}

TEST(oracle_quantize, scales_never_become_zero) {
  float const tiny = 0x1p-149F;
  EXPECT_THAT(quantized({tiny}, 1, dtype::e4m3, dtype::f32, granularity::row()).scales,
              ElementsAre(0x1p-149));
  EXPECT_THAT(quantized({tiny}, 1, dtype::e4m3, dtype::f16, granularity::row()).scales,
              ElementsAre(0x1p-24));
  EXPECT_THAT(quantized({tiny}, 1, dtype::e4m3, dtype::bf16, granularity::row()).scales,
              ElementsAre(0x1p-133));
  EXPECT_THAT(quantized({tiny}, 1, dtype::int8, dtype::e4m3, granularity::row()).scales,
              ElementsAre(0x1p-9));
  EXPECT_THAT(quantized({tiny}, 1, dtype::int8, dtype::e8m0, granularity::row()).scales,
              ElementsAre(0x1p-127));
}

TEST(oracle_quantize, codes_saturate_where_a_rounded_scale_is_too_small) {
  // 134 / 127 rounds down to 1 in e4m3, and 134 / 1 is past the largest code, on both sides.
  auto const q = quantized({134, -134}, 1, dtype::int8, dtype::e4m3, granularity::row());
  EXPECT_THAT(q.scales, ElementsAre(1.0));
  EXPECT_THAT(q.codes, ElementsAre(127.0, -127.0));
}

TEST(oracle_quantize, zero_blocks_and_blocks_that_are_not_finite) {
  auto const q =
      quantized({0, -0.0F, 1, f32_nan, 448, 1}, 1, dtype::e4m3, dtype::f32, granularity::group(2));
  EXPECT_EQ(q.scales[0], 1.0);
  EXPECT_TRUE(std::isnan(q.scales[1]));
  EXPECT_EQ(q.scales[2], 1.0);
  EXPECT_THAT(q.codes, ElementsAre(0, 0, 0, 0, 448, 1));
}

TEST(oracle_quantize, nvfp4_has_two_levels) {
  // Peak 2688 = 6 * 448: global 1. Block peaks 2688, 12, 0, 3 give scales 448, 2, 1, 0.5.
  std::vector<float> const x{2688, 448, 12, -4, 0, 0, 3, 0.5F};
  auto const q = quantized(x, 1, dtype::fp4, dtype::e4m3, granularity::group(2));
  EXPECT_EQ(q.global, 1.0);
  EXPECT_THAT(q.scales, ElementsAre(448.0, 2.0, 1.0, 0.5));
  EXPECT_THAT(q.codes, ElementsAre(6, 1, 6, -2, 0, 0, 6, 1));

  std::vector<float> halves;
  for (float const value : x) halves.push_back(value / 2);
  auto const multiplied = quantized(halves, 1, dtype::fp4, dtype::e4m3, granularity::group(2));
  EXPECT_EQ(multiplied.global, 0.5);
  EXPECT_EQ(multiplied.scales, q.scales);
  EXPECT_EQ(multiplied.codes, q.codes);
  auto const divided = quantized(halves, 1, dtype::fp4, dtype::e4m3, granularity::group(2),
                                 {{}, global_scale::direction::divide});
  EXPECT_EQ(divided.global, 2.0);
  EXPECT_EQ(divided.scales, q.scales);
  EXPECT_EQ(divided.codes, q.codes);
}

TEST(oracle_quantize, nvfp4_global_is_one_where_f32_cannot_hold_it) {
  for (auto const applied : {global_scale::direction::multiply, global_scale::direction::divide}) {
    for (float const peak : {0.0F, 0x1p-149F}) {
      auto const q =
          quantized({peak, 0}, 1, dtype::fp4, dtype::e4m3, granularity::group(2), {{}, applied});
      EXPECT_EQ(q.global, 1.0) << peak;
      EXPECT_THAT(q.scales, ElementsAre(peak == 0.0F ? 1.0 : 0x1p-9));
      EXPECT_THAT(q.codes, ElementsAre(0, 0));
    }
  }
}

TEST(oracle_quantize, nvfp4_keeps_nan_in_its_block) {
  auto const q = quantized({f32_nan, 1, 2688, 6, 0x1p-20F, 0}, 1, dtype::fp4, dtype::e4m3,
                           granularity::group(2));
  EXPECT_EQ(q.global, 1.0);
  EXPECT_TRUE(std::isnan(q.scales[0]));
  EXPECT_EQ(q.scales[1], 448.0);
  EXPECT_EQ(q.scales[2], 0x1p-9);
  EXPECT_THAT(q.codes, ElementsAre(0, 0, 6, 0, 0, 0));
}

}  // namespace
}  // namespace moe64
