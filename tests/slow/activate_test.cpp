// Every finite f32 as the gate of an activation, against the oracle in double. The result may be
// off by 4 units of 2^-24 (1 + |x|), its slope by 6 of 2^-24 (they bend at most once and are
// bounded by 1.2), which is less than the 16 roundings that cases/tolerance.hpp allows; silu and
// the exact gelu keep their relative precision far left of zero, too.
#include "moe64/cpu.hpp"
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace moe64 {
namespace {

class every_gate : public testing::TestWithParam<activation> {};

TEST_P(every_gate, is_close_to_the_oracle) {
  constexpr index_t count = index_t{1} << 16;
  std::vector<float> gate(count), one(count, 1.0F), out(count), d_gate(count), d_up(count);
  auto const row = [](std::vector<float>& values) {
    return tensor_view::contiguous(values.data(), dtype::f32, {1, count});
  };
  activation_spec const spec{GetParam()};
  bool const keeps_digits = GetParam() != activation::gelu_tanh_glu;
  for (std::uint32_t upper = 0; upper < 1U << 16; ++upper) {
    for (std::uint32_t lower = 0; lower < 1U << 16; ++lower) {
      gate[lower] = std::bit_cast<float>(upper << 16 | lower);
    }
    if (!std::isfinite(gate[0])) continue;
    activate({spec, row(gate), row(one), {}, row(out)}, cpu_stream());
    activate_backward({spec, row(gate), row(one), row(one), {}, {}, row(d_gate), row(d_up)},
                      cpu_stream());
    for (std::size_t i = 0; i < gate.size(); ++i) {
      double const x = gate[i];
      double const value = oracle::activate(spec, x, 1.0);
      double const error = std::fabs(static_cast<double>(out[i]) - value);
      ASSERT_LE(error, 4.0 * 0x1p-24 * (1.0 + std::fabs(x))) << x;
      bool const normal = std::fabs(value) > 1e-30;
      ASSERT_TRUE(!keeps_digits || !normal || error <= 6.0 * 0x1p-23 * std::fabs(value)) << x;
      double const slope = oracle::activate_backward(spec, x, 1.0, 1.0).gate;
      ASSERT_NEAR(static_cast<double>(d_gate[i]), slope, 6.0 * 0x1p-24) << x;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(kinds, every_gate,
                         testing::Values(activation::silu_glu, activation::gelu_glu,
                                         activation::gelu_tanh_glu),
                         [](auto const& tested) { return std::string(name(tested.param)); });

}  // namespace
}  // namespace moe64
