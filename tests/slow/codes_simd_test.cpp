// Every one of the 2^32 floats through the vectorised encoders, at every width, against the codecs
// of core/float8.hpp (which codec_test.cpp holds to their definition).
#include "cpu/runtime/rows.hpp"
#include "support/runs.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace moe64 {
namespace {

class every_float_by_vectors : public testing::TestWithParam<dtype> {};

TEST_P(every_float_by_vectors, is_stored_as_by_rows) {
  constexpr index_t count = index_t{1} << 16;
  std::vector<float> values(count);
  std::vector<std::uint8_t> expected(count * sizeof(float)), actual(expected.size());
  for (std::uint32_t upper = 0; upper < 1U << 16; ++upper) {
    for (std::uint32_t lower = 0; lower < 1U << 16; ++lower) {
      values[lower] = std::bit_cast<float>(upper << 16 | lower);
    }
    store_row({expected.data(), 0, 1, GetParam()}, 0, count, values.data());
    for (test::run_functions const& width : test::run_widths()) {
      width.store({actual.data(), 0, 1, GetParam()}, 0, count, values.data());
      auto const bytes = static_cast<std::size_t>(count * bits(GetParam()) / 8);
      ASSERT_EQ(std::memcmp(actual.data(), expected.data(), bytes), 0)
          << width.name << ", upper bits " << std::hex << upper;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(types, every_float_by_vectors,
                         testing::Values(dtype::bf16, dtype::f16, dtype::e4m3, dtype::e5m2,
                                         dtype::int8, dtype::int4, dtype::fp4),
                         [](auto const& tested) { return std::string(name(tested.param)); });

}  // namespace
}  // namespace moe64
