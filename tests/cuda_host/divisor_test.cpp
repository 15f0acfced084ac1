// Division by a multiplication, as kernels do it.
#include "cuda/kernels/device/divisor.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace moe64::cuda {
namespace {

TEST(cuda_divisor, quotients_around_every_multiple) {
  constexpr index_t last = (index_t{1} << 31) - 1;
  for (index_t const by :
       {1,     2,     3,       5,          7,          8,          48,        56,
        96,    127,   128,     129,        448,        641,        896,       65535,
        65536, 65537, 6700417, 0x3fffffff, 0x40000000, 0x40000001, 0x7fffffff}) {
    divisor const d = divide_by(by);
    for (index_t const multiple : {index_t{0}, by, 2 * by, last / by / 2 * by, last / by * by, last,
                                   index_t{1} << 31, index_t{1} << 40, (index_t{1} << 31) * by}) {
      for (index_t count = multiple - 2; count <= multiple + 2; ++count) {
        if (count < 0) continue;
        ASSERT_EQ(divided(count, d), count / by) << count << " / " << by;
      }
    }
  }
}

TEST(cuda_divisor, small_numbers_by_small_numbers) {
  for (index_t by = 1; by < 300; ++by) {
    divisor const d = divide_by(by);
    for (index_t count = 0; count < 2000; ++count) {
      ASSERT_EQ(divided(count, d), count / by) << count << " / " << by;
    }
  }
}

TEST(cuda_divisor, divisors_that_are_too_large_for_it) {
  index_t const by = (index_t{1} << 33) + 1;
  divisor const d = divide_by(by);
  EXPECT_EQ(divided(0, d), 0);
  EXPECT_EQ(divided((index_t{1} << 31) - 1, d), 0);
  EXPECT_EQ(divided(3 * by - 1, d), 2);
  EXPECT_EQ(divided(3 * by, d), 3);
  EXPECT_EQ(divided(std::numeric_limits<index_t>::max(), d),
            std::numeric_limits<index_t>::max() / by);
}

}  // namespace
}  // namespace moe64::cuda
