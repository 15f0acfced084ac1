// One test per mistake that the other tests could not see. Each is named after the mistake.
#include "moe64/cpu.hpp"
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/routing.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace moe64::test {
namespace {

/// Codes are summed over at most 128 columns before they are scaled. Where the roundings are shows in
/// the last bit only, and only for some scales: this takes the first of them.
TEST(regression, sums_of_codes_not_promoted) {
  constexpr index_t depth = 256;
  constexpr float first = 1.0F;
  constexpr float second = 1.625F;
  float scale = 0.1F;
  auto const promoted = [&] { return first * scale + second * scale; };
  auto const whole = [&] { return (first + second) * scale; };
  while (promoted() == whole()) scale = std::nextafter(scale, 1.0F);

  test_tensor x(dtype::e4m3, {1, depth});
  x.fill([](index_t, index_t c, index_t) { return c == 5 ? first : c == 200 ? second : 0.0F; });
  test_tensor weights(dtype::e4m3, {1, 1, depth});
  weights.fill([](index_t, index_t, index_t) { return 1.0; });
  test_tensor x_scale(dtype::f32, {1, 1});
  test_tensor weight_scale(dtype::f32, {1, 1, 1});
  x_scale.set(1.0, 0, 0);
  weight_scale.set(double{scale}, 0, 0, 0);
  test_tensor const expert_begin = make_expert_begin({1});
  test_tensor y(dtype::f32, {1, 1});
  for_each_implementation(
      grouped_gemm_args{.x = quantized_view::scaled(x, x_scale, granularity::row()),
                        .weights = weight_stack::single(
                            quantized_view::scaled(weights, weight_scale, granularity::tensor())),
                        .expert_begin = expert_begin,
                        .y = y},
      [&](grouped_gemm_args const& args) {
        y.poison();
        grouped_gemm(args, cpu_stream());
        EXPECT_EQ(y.code(0, 0), std::bit_cast<std::uint32_t>(promoted()));
      });
}

}  // namespace
}  // namespace moe64::test
