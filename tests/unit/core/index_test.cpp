#include "moe64/index.hpp"

#include "moe64/dtype.hpp"
#include "moe64/error.hpp"
#include "moe64/version.hpp"
#include "support/error_matcher.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>

namespace moe64 {
namespace {

constexpr index_t most = std::numeric_limits<index_t>::max();
constexpr index_t least = std::numeric_limits<index_t>::min();

TEST(index, products_up_to_the_last_that_fits) {
  EXPECT_EQ(checked_mul(most, 1), most);
  EXPECT_EQ(checked_mul(0, most), 0);
  EXPECT_EQ(checked_mul(index_t{1} << 31, (index_t{1} << 32) - 1), 0x7fffffff80000000);
  EXPECT_EQ(checked_mul(most / 7, 7), 9223372036854775807);  // 2^63 - 1 is divisible by 7
  EXPECT_MOE64_ERROR(checked_mul(most / 7 + 1, 7), errc::size_overflow, "multiply",
                     "1317624576693539402", "7");
  EXPECT_MOE64_ERROR(checked_mul(index_t{1} << 32, index_t{1} << 31), errc::size_overflow,
                     "4294967296", "2147483648");
  EXPECT_MOE64_ERROR(checked_mul(least, -1), errc::size_overflow);
  EXPECT_MOE64_ERROR(checked_mul(most, 2), errc::size_overflow);
}

TEST(index, sums_up_to_the_last_that_fits) {
  EXPECT_EQ(checked_add(most - 1, 1), most);
  EXPECT_EQ(checked_add(least, most), -1);
  EXPECT_MOE64_ERROR(checked_add(most, 1), errc::size_overflow, "add", "9223372036854775807");
  EXPECT_MOE64_ERROR(checked_add(least, -1), errc::size_overflow);
}

TEST(index, narrow_keeps_the_value_or_refuses) {
  EXPECT_EQ(narrow<std::int32_t>(2147483647), 2147483647);
  EXPECT_EQ(narrow<std::int32_t>(-2147483648), -2147483648);
  EXPECT_EQ(narrow<std::uint8_t>(255), 255);
  EXPECT_EQ(narrow<std::int16_t>(-32768), -32768);
  EXPECT_EQ(narrow<std::uint32_t>(4294967295), 4294967295U);
  EXPECT_MOE64_ERROR(narrow<std::int32_t>(2147483648), errc::size_overflow, "narrow", "2147483648",
                     "2147483647");
  EXPECT_MOE64_ERROR(narrow<std::int32_t>(-2147483649), errc::size_overflow);
  EXPECT_MOE64_ERROR(narrow<std::uint8_t>(-1), errc::size_overflow);
  EXPECT_MOE64_ERROR(narrow<std::uint8_t>(256), errc::size_overflow);
  EXPECT_MOE64_ERROR(narrow<std::uint32_t>(4294967296), errc::size_overflow);
}

TEST(index, ceil_div_has_no_overflow_of_its_own) {
  EXPECT_EQ(ceil_div(0, 128), 0);
  EXPECT_EQ(ceil_div(1, 128), 1);
  EXPECT_EQ(ceil_div(128, 128), 1);
  EXPECT_EQ(ceil_div(129, 128), 2);
  EXPECT_EQ(ceil_div(most, 2), most / 2 + 1);
  EXPECT_EQ(ceil_div(most, most), 1);
}

TEST(index, align_up_at_its_boundaries) {
  EXPECT_EQ(align_up(0, 64), 0);
  EXPECT_EQ(align_up(1, 64), 64);
  EXPECT_EQ(align_up(64, 64), 64);
  EXPECT_EQ(align_up(65, 64), 128);
  index_t const last = most - 63;  // the last multiple of 64
  EXPECT_EQ(align_up(last, 64), last);
  EXPECT_EQ(align_up(last - 1, 64), last);
  EXPECT_MOE64_ERROR(align_up(last + 1, 64), errc::size_overflow);
}

TEST(index, is_usable_in_constant_expressions) {
  static_assert(checked_mul(3, 4) == 12 && checked_add(3, 4) == 7 && align_up(5, 4) == 8);
  static_assert(narrow<std::int16_t>(7) == 7);
}

TEST(dtype, names_are_distinct_and_parse_back) {
  std::set<std::string> names;
  for (int i = 0; i < dtype_count; ++i) {
    auto const type = static_cast<dtype>(i);
    names.emplace(name(type));
    EXPECT_EQ(parse_dtype(name(type)), type) << name(type);
  }
  EXPECT_EQ(names, (std::set<std::string>{"f32", "bf16", "f16", "e4m3", "e5m2", "e8m0", "int8",
                                          "int4", "fp4", "int32", "int64", "uint8"}));
  EXPECT_EQ(parse_dtype("float8_e4m3fn"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
  EXPECT_EQ(parse_dtype("F32"), std::nullopt);
  EXPECT_EQ(name(static_cast<dtype>(12)), "unknown");
}

TEST(dtype, kinds) {
  std::string floats, codes, scales;
  for (int i = 0; i < dtype_count; ++i) {
    auto const type = static_cast<dtype>(i);
    std::string const word = std::string(name(type)) + " ";
    if (is_float(type)) floats += word;
    if (is_quantized(type)) codes += word;
    if (is_scale(type)) scales += word;
  }
  EXPECT_EQ(floats, "f32 bf16 f16 ");
  EXPECT_EQ(codes, "e4m3 e5m2 int8 int4 fp4 ");
  EXPECT_EQ(scales, "f32 bf16 f16 e4m3 e8m0 ");
  EXPECT_EQ(bits(dtype::fp4), 4);
  EXPECT_EQ(bits(dtype::e8m0), 8);
  EXPECT_EQ(bits(dtype::f16), 16);
  EXPECT_EQ(bits(dtype::int32), 32);
  EXPECT_EQ(bits(dtype::int64), 64);
}

TEST(error, codes_have_names_and_carry_their_message) {
  std::set<std::string> names;
  for (int code = 1; code <= 11; ++code) names.emplace(name(static_cast<errc>(code)));
  EXPECT_EQ(names.size(), 11U);
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(name(static_cast<errc>(99)), "unknown");
  EXPECT_EQ(name(errc::workspace_too_small), "workspace_too_small");
  error const e(errc::missing_scale, "[x] y");
  EXPECT_EQ(e.code(), errc::missing_scale);
  EXPECT_STREQ(e.what(), "[x] y");
  EXPECT_TRUE(support::yes());
  EXPECT_FALSE(support::no("because"));
  EXPECT_EQ(support::no("because").reason(), "because");
  EXPECT_FALSE(version().empty());
}

}  // namespace
}  // namespace moe64
