#include "core/float8.hpp"
#include "core/number.hpp"
#include "oracle/oracle.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace moe64 {
namespace {

using test::random_source;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

/// The library's reading and writing of one number.
float decode(std::uint64_t code, dtype type) {
  alignas(8) std::byte memory[8];
  std::memcpy(memory, &code, sizeof(code));
  return visit_number(type, [&](auto number) { return decltype(number)::get(memory, 0); });
}
std::uint64_t encode(float value, dtype type) {
  alignas(8) std::byte memory[8] = {};
  visit_number(type, [&](auto number) { decltype(number)::set(memory, 0, value); });
  std::uint64_t code = 0;
  std::memcpy(&code, memory, sizeof(code));
  return code;
}

bool same_number(double left, double right, bool signed_zero) {
  if (std::isnan(left) || std::isnan(right)) return std::isnan(left) && std::isnan(right);
  return left == right && (!signed_zero || std::signbit(left) == std::signbit(right));
}

bool has_signed_zero(dtype type) {
  return type != dtype::int8 && type != dtype::int4 && type != dtype::e8m0;
}

std::uint64_t code_count(dtype type) { return std::uint64_t{1} << bits(type); }

class codec : public testing::TestWithParam<dtype> {};

TEST_P(codec, every_code_decodes_to_the_oracles_number) {
  dtype const type = GetParam();
  for (std::uint64_t code = 0; code < code_count(type); ++code) {
    double const expected = oracle::load(&code, type, 0);
    ASSERT_TRUE(same_number(decode(code, type), expected, true))
        << "code " << code << ": " << decode(code, type) << " expected " << expected;
  }
}

TEST_P(codec, every_code_of_a_number_encodes_back_to_itself) {
  dtype const type = GetParam();
  bool const saturates = type == dtype::e5m2;
  for (std::uint64_t code = 0; code < code_count(type); ++code) {
    float const number = decode(code, type);
    if (std::isnan(number)) {
      ASSERT_TRUE(std::isnan(decode(encode(number, type), type))) << code;
    } else if (saturates && std::isinf(number)) {
      ASSERT_EQ(decode(encode(number, type), type), std::copysign(57344.0F, number));
    } else {
      ASSERT_EQ(encode(number, type), code) << number;
    }
  }
}

/// Encoding one f32 must give the oracle's rounding.
testing::AssertionResult rounds_like_the_oracle(float value, dtype type) {
  float const actual = decode(encode(value, type), type);
  double const expected = oracle::round_to(value, type);
  if (same_number(actual, expected, has_signed_zero(type))) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << std::hexfloat << value << " became " << actual << ", expected " << expected;
}

TEST_P(codec, rounds_right_beside_every_number_and_every_tie) {
  dtype const type = GetParam();
  std::vector<float> numbers;
  for (std::uint64_t code = 0; code < code_count(type); ++code) {
    float const number = decode(code, type);
    if (std::isfinite(number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  // Past both ends: the place where the next number would be, and its tie.
  float const top = numbers.back();
  float const step = top - numbers[numbers.size() - 2];
  numbers.insert(numbers.begin(), -(top + step));
  numbers.push_back(top + step);
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    auto const tie = static_cast<float>((double{numbers[i]} + double{numbers[i + 1]}) / 2.0);
    for (float const center : {numbers[i], tie, numbers[i + 1]}) {
      ASSERT_TRUE(rounds_like_the_oracle(center, type));
      ASSERT_TRUE(rounds_like_the_oracle(std::nextafter(center, infinity), type));
      ASSERT_TRUE(rounds_like_the_oracle(std::nextafter(center, -infinity), type));
    }
  }
}

TEST_P(codec, rounds_special_numbers) {
  dtype const type = GetParam();
  float const largest = std::numeric_limits<float>::max();
  float const smallest = std::numeric_limits<float>::denorm_min();
  float const normal = std::numeric_limits<float>::min();
  for (float const value : {0.0F, -0.0F, smallest, -smallest, normal, -normal, largest, -largest,
                            infinity, -infinity, quiet_nan, -quiet_nan}) {
    EXPECT_TRUE(rounds_like_the_oracle(value, type));
  }
  // A NaN whose payload lies only in the bits that a short format drops.
  EXPECT_TRUE(rounds_like_the_oracle(std::bit_cast<float>(0x7f800001U), type));
  EXPECT_TRUE(rounds_like_the_oracle(std::bit_cast<float>(0xff800001U), type));
}

TEST_P(codec, rounds_a_million_random_floats_like_the_oracle) {
  dtype const type = GetParam();
  random_source const random(7);
  for (index_t i = 0; i < 500'000; ++i) {
    // Any bit pattern at all, then one near the numbers of the type.
    ASSERT_TRUE(rounds_like_the_oracle(
        std::bit_cast<float>(static_cast<std::uint32_t>(random.bits(2 * i))), type));
    auto const exponent = static_cast<int>(random.between(2 * i, -20, 18));
    ASSERT_TRUE(rounds_like_the_oracle(
        static_cast<float>(std::ldexp(random.uniform(2 * i + 1), exponent)), type));
  }
}

INSTANTIATE_TEST_SUITE_P(types, codec,
                         testing::Values(dtype::bf16, dtype::f16, dtype::e4m3, dtype::e5m2,
                                         dtype::e8m0, dtype::int8, dtype::int4, dtype::fp4),
                         [](auto const& tested) { return std::string(name(tested.param)); });

TEST(codec_values, those_that_documents_state) {
  EXPECT_EQ(encode(448.0F, dtype::e4m3), 0x7eU);
  EXPECT_EQ(encode(464.0F, dtype::e4m3), 0x7eU);  // would be a tie with the missing 480
  EXPECT_EQ(encode(1e30F, dtype::e4m3), 0x7eU);
  EXPECT_EQ(encode(-infinity, dtype::e4m3), 0xfeU);
  EXPECT_EQ(encode(quiet_nan, dtype::e4m3) & 0x7fU, 0x7fU);
  EXPECT_EQ(encode(-0.0F, dtype::e4m3), 0x80U);
  EXPECT_EQ(encode(0x1p-10F, dtype::e4m3), 0x00U);  // half the smallest: a tie to even zero
  EXPECT_EQ(encode(0x1.8p-9F, dtype::e4m3), 0x02U);
  EXPECT_EQ(encode(infinity, dtype::e5m2), 0x7bU);
  EXPECT_EQ(encode(65520.0F, dtype::f16), 0x7c00U);
  EXPECT_EQ(encode(65519.0F, dtype::f16), 0x7bffU);
  EXPECT_EQ(encode(quiet_nan, dtype::fp4), 0x7U);
  EXPECT_EQ(encode(quiet_nan, dtype::int8), 0U);
  EXPECT_EQ(encode(-128.5F, dtype::int8), 0x80U);
  EXPECT_EQ(encode(2.5F, dtype::int8), 2U);
  EXPECT_EQ(encode(-3.5F, dtype::int8), 0xfcU);
  EXPECT_EQ(encode(std::bit_cast<float>(0x7f7fffffU), dtype::bf16), 0x7f80U);
}

TEST(codec_values, e8m0_goes_up) {
  EXPECT_EQ(encode_e8m0_up(1.0F), 127);
  EXPECT_EQ(encode_e8m0_up(std::nextafter(1.0F, 2.0F)), 128);
  EXPECT_EQ(encode_e8m0_up(0.75F), 127);
  EXPECT_EQ(encode_e8m0_up(0x1p-127F), 0);
  EXPECT_EQ(encode_e8m0_up(std::nextafter(0x1p-127F, 1.0F)), 1);
  EXPECT_EQ(encode_e8m0_up(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(encode_e8m0_up(std::numeric_limits<float>::max()), 254);
  EXPECT_EQ(encode_e8m0_up(0.0F), 0);
  EXPECT_EQ(encode_e8m0_up(-5.0F), 0);
  EXPECT_EQ(encode_e8m0_up(infinity), 255);
  EXPECT_EQ(encode_e8m0_up(quiet_nan), 255);
}

TEST(codec_values, nibbles_keep_their_neighbour) {
  std::uint8_t bytes[2] = {0xab, 0xcd};
  int4_number::set(bytes, 1, -1.0F);
  EXPECT_EQ(bytes[0], 0xfb);
  int4_number::set(bytes, 2, 7.0F);
  EXPECT_EQ(bytes[1], 0xc7);
  EXPECT_EQ(int4_number::get(bytes, 1), -1.0F);
  fp4_number::set(bytes, 3, -6.0F);
  EXPECT_EQ(bytes[1], 0xf7);
}

TEST(codec_values, f32_is_untouched) {
  float const value = std::bit_cast<float>(0x00000001U);
  float stored = 0.0F;
  f32_number::set(&stored, 0, value);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(f32_number::get(&stored, 0)), 1U);
  EXPECT_THROW(static_cast<void>(visit_number(dtype::int64, [](auto) { return 0; })), error);
}

}  // namespace
}  // namespace moe64
