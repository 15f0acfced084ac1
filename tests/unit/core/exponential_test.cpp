// The exponential function of routing.
#include "core/exponential.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace moe64 {
namespace {

TEST(exponential, is_the_rounded_result_almost_everywhere_and_never_far_from_it) {
  std::int64_t others = 0, all = 0;
  // A prime step through the bits of all numbers of [-120, 120].
  constexpr std::uint32_t last = std::bit_cast<std::uint32_t>(120.0F);
  for (std::uint32_t bits = 0; bits <= last; bits += 1009) {
    for (std::uint32_t const sign : {0U, 0x80000000U}) {
      auto const x = std::bit_cast<float>(bits | sign);
      auto const rounded = static_cast<float>(std::exp(static_cast<double>(x)));
      float const found = exp_f32(x);
      ++all;
      if (found == rounded) continue;
      ++others;
      float const next = std::nextafter(rounded, found);
      ASSERT_EQ(found, next) << "exp(" << x << ")";
    }
  }
  EXPECT_LT(others * 100000, all) << others << " of " << all;
}

TEST(exponential, ends_and_special_numbers) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_f32(0.0F), 1.0F);
  EXPECT_EQ(exp_f32(-0.0F), 1.0F);
  EXPECT_EQ(exp_f32(infinity), infinity);
  EXPECT_EQ(exp_f32(-infinity), 0.0F);
  EXPECT_EQ(exp_f32(std::numeric_limits<float>::max()), infinity);
  EXPECT_EQ(exp_f32(std::numeric_limits<float>::lowest()), 0.0F);
  EXPECT_EQ(exp_f32(88.73F), infinity);
  EXPECT_TRUE(std::isfinite(exp_f32(88.72F)));
  EXPECT_EQ(exp_f32(-103.0F), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(exp_f32(-104.0F), 0.0F);
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(exp_f32(-std::numeric_limits<float>::quiet_NaN())));
}

static_assert(exp_f32(0.0F) == 1.0F);

}  // namespace
}  // namespace moe64
