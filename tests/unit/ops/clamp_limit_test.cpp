// The gradient at exactly the limit of a clamped activation: that from within (docs/numerics.md).
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <iterator>

namespace moe64 {
namespace {

using test::for_each_implementation;
using test::target;
using test::test_tensor;

constexpr activation clamped[] = {activation::gptoss_glu, activation::clamped_silu_glu,
                                  activation::step_glu};
constexpr double limit = 3.0;  // a number of every type, as are its neighbours below

struct place {
  double gate, up;
  bool gate_flows, up_flows;
};

constexpr place places[] = {{limit, 1.0, true, true},           // gate at its limit
                            {limit + 0.125, 1.0, false, true},  // and beyond
                            {-limit, 1.0, true, true},          // gate has no lower one
                            {-limit - 1.0, 1.0, true, true},    {1.0, limit, true, true},
                            {1.0, limit + 0.125, true, false},  {1.0, -limit, true, true},
                            {1.0, -limit - 0.125, true, false}, {limit, -limit, true, true}};
constexpr index_t count = std::size(places);

/// step_glu clamps what silu gives: of these gates none is beyond.
bool gate_flows(activation kind, place const& at) {
  return kind == activation::step_glu || at.gate_flows;
}

TEST(clamp_limit, gradients_at_exactly_the_limit_are_those_from_within) {
  for (activation const kind : clamped) {
    for (place const& at : places) {
      activation_spec const spec{kind, 1.702F, static_cast<float>(limit)};
      double const step = 0x1p-20;  // towards zero, where nothing is clamped at the limit
      double const inside_gate = at.gate - step,
                   inside_up = at.up > 0 ? at.up - step : at.up + step;
      auto const slope = oracle::activate_backward(spec, at.gate, at.up, 1.0);
      if (gate_flows(kind, at)) {
        double const difference =
            (oracle::activate(spec, at.gate, at.up) - oracle::activate(spec, inside_gate, at.up)) /
            step;
        EXPECT_NEAR(slope.gate, difference, 1e-4) << name(kind) << at.gate << " " << at.up;
      }
      if (at.up_flows) {
        double const difference =
            (oracle::activate(spec, at.gate, at.up) - oracle::activate(spec, at.gate, inside_up)) /
            (at.up - inside_up);
        EXPECT_NEAR(slope.up, difference, 1e-4) << name(kind) << at.gate << " " << at.up;
      }
    }
  }
}

TEST(clamp_limit, every_implementation_agrees_on_what_flows) {
  for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
    constexpr index_t repeats = 8;  // whole vectors, and a part of one
    index_t const inter = count * repeats;
    test_tensor gate(type, {1, inter}), up(type, {1, inter}), d_out(type, {1, inter});
    auto const at = [](index_t c) { return places[static_cast<std::size_t>(c % count)]; };
    gate.fill([&](index_t, index_t c, index_t) { return at(c).gate; });
    up.fill([&](index_t, index_t c, index_t) { return at(c).up; });
    d_out.fill([](index_t, index_t, index_t) { return 1.0; });
    for (activation const kind : clamped) {
      activation_spec const spec{kind, 1.702F, static_cast<float>(limit)};
      test_tensor const d_gate(type, {1, inter}), d_up(type, {1, inter});
      for_each_implementation(
          activate_backward_args{spec, gate, up, d_out, {}, {}, d_gate, d_up},
          [&](activate_backward_args const& args) {
            activate_backward(args, target());
            for (index_t c = 0; c < inter; ++c) {
              auto const slope = oracle::activate_backward(spec, at(c).gate, at(c).up, 1.0);
              EXPECT_NEAR(d_gate.get(0, c), slope.gate, 0.02 * std::fabs(slope.gate) + 1e-6);
              EXPECT_NEAR(d_up.get(0, c), slope.up, 0.02 * std::fabs(slope.up) + 1e-6);
              EXPECT_EQ(d_gate.get(0, c) != 0.0, gate_flows(kind, at(c))) << name(kind) << " " << c;
              EXPECT_EQ(d_up.get(0, c) != 0.0, at(c).up_flows) << name(kind) << " " << c;
            }
          });
    }
  }
}

}  // namespace
}  // namespace moe64
