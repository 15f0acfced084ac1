#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::difference;
using test::for_each_implementation;
using test::random_source;
using test::target;
using test::test_plan;
using test::test_tensor;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};
constexpr activation every_activation[] = {
    activation::silu_glu,         activation::gelu_glu, activation::gelu_tanh_glu,
    activation::gptoss_glu,       activation::silu,     activation::gelu,
    activation::clamped_silu_glu, activation::relu2,    activation::step_glu};

/// f32 arithmetic on a product of two factors: each factor is a sum of terms no larger than
/// (1 + |x|) of its input that were rounded about 16 times, and the result is rounded to the type.
double bound(activation_spec const& spec, double gate, double up, double scale, double value,
             dtype type) {
  double const g = 1.0 + std::fabs(gate);
  double const u = is_gated(spec.kind) ? 1.0 + std::fabs(up) : 1.0;
  double const square = spec.kind == activation::relu2 ? g : 1.0;
  double const unit = type == dtype::f32 ? 0x1p-24 : type == dtype::bf16 ? 0x1p-8 : 0x1p-11;
  double const smallest = type == dtype::f16 ? 0x1p-25 : 0.0;
  return 16.0 * 0x1p-24 * g * u * square * scale + std::fabs(value) * unit * 1.01 + smallest;
}

/// The grid where functions bend, saturate and are clamped, then random numbers.
struct inputs {
  test_tensor gate, up;

  inputs(dtype type, index_t rows, index_t inter)
      : gate(type, {rows, inter}), up(type, {rows, inter}) {
    random_source const random(3);
    double const special[] = {0.0,  -0.0, 1.0,   -1.0, 6.9,   7.0,  7.1,   -7.0,
                              -7.1, 20.0, -20.0, 90.0, -90.0, 1e-3, -1e-3, 1e-6};
    gate.fill([&](index_t r, index_t c, index_t) {
      return r == 0 ? special[c % 16] : random.uniform(2 * (r * inter + c), -8.0, 8.0);
    });
    up.fill([&](index_t r, index_t c, index_t) {
      return r == 0 ? special[c / 16 % 16] : random.uniform(2 * (r * inter + c) + 1, -8.0, 8.0);
    });
  }
};

TEST(activate, every_kind_against_the_oracle) {
  for (dtype const type : float_types) {
    inputs const in(type, 4, 600);
    for (activation const kind : every_activation) {
      for (dtype const out_type : float_types) {
        activation_spec const spec{kind, 1.702F, 7.0F};
        tensor_view const up = is_gated(kind) ? in.up.view() : tensor_view{};
        test_tensor const out(out_type, {4, 600});
        for_each_implementation(
            activate_args{spec, in.gate, up, {}, out}, [&](activate_args const& args) {
              activate(args, target());
              std::vector<double> expected, bounds;
              for (index_t r = 0; r < 4; ++r) {
                for (index_t c = 0; c < 600; ++c) {
                  double const g = in.gate.get(r, c), u = in.up.get(r, c);
                  expected.push_back(oracle::activate(spec, g, u));
                  bounds.push_back(bound(spec, g, u, 1.0, expected.back(), out_type));
                }
              }
              EXPECT_EQ(difference(out.numbers(), expected, bounds), "")
                  << name(kind) << " " << name(type) << " to " << name(out_type);
            });
      }
    }
  }
}

TEST(activate, clamps_and_their_parameters) {
  inputs const in(dtype::f32, 3, 300);
  for (activation const kind :
       {activation::gptoss_glu, activation::clamped_silu_glu, activation::step_glu}) {
    for (float const limit : {0.5F, 3.0F, 1e9F}) {
      for (float const alpha : {0.5F, 1.0F, 3.0F}) {
        activation_spec const spec{kind, alpha, limit};
        test_tensor const out(dtype::f32, {3, 300});
        activate({spec, in.gate, in.up, {}, out}, target());
        std::vector<double> expected, bounds;
        for (index_t r = 0; r < 3; ++r) {
          for (index_t c = 0; c < 300; ++c) {
            double const g = in.gate.get(r, c), u = in.up.get(r, c);
            expected.push_back(oracle::activate(spec, g, u));
            bounds.push_back(bound(spec, g, u, 3.0, expected.back(), dtype::f32));
          }
        }
        EXPECT_EQ(difference(out.numbers(), expected, bounds), "") << name(kind) << limit << alpha;
      }
    }
  }
}

TEST(activate, exact_where_the_result_is_exact) {
  test_tensor gate(dtype::f32, {1, 8}), out(dtype::f32, {1, 8});
  gate.fill([](index_t, index_t c, index_t) { return static_cast<double>(c) - 3.0; });
  activate({{activation::relu2}, gate, {}, {}, out}, target());
  EXPECT_EQ(out.numbers(), (std::vector<double>{0, 0, 0, 0, 1, 4, 9, 16}));
  test_tensor zero(dtype::f32, {1, 8}), up(dtype::f32, {1, 8});
  zero.fill([](index_t, index_t, index_t) { return 0.0; });
  up.fill_integers(1, -5, 5);
  for (activation const kind : every_activation) {
    tensor_view const second = is_gated(kind) ? up.view() : tensor_view{};
    activate({{kind}, zero, second, {}, out}, target());
    for (double const value : out.numbers()) EXPECT_EQ(value, 0.0) << name(kind);
  }
}

TEST(activate, halves_and_interleaved_columns_are_only_strides) {
  for (dtype const type : float_types) {
    test_tensor fused(type, {5, 40});
    fused.fill_uniform(9, -4.0, 4.0);
    tensor_view const f = fused.view();
    struct split {
      tensor_view gate, up;
    };
    for (split const& s :
         {split{f.slice(1, 0, 20), f.slice(1, 20, 40)}, split{f.every(1, 0, 2), f.every(1, 1, 2)},
          split{f.slice(1, 20, 40), f.every(1, 0, 2)}}) {
      test_tensor gate(type, {5, 20}), up(type, {5, 20});
      gate.fill([&](index_t r, index_t c, index_t) { return oracle::at(s.gate, r, c); });
      up.fill([&](index_t r, index_t c, index_t) { return oracle::at(s.up, r, c); });
      test_tensor const straight(type, {5, 20}), strided(type, {5, 20}, {1, 6});
      activate({{}, gate, up, {}, straight}, target());
      activate({{}, s.gate, s.up, {}, strided}, target());
      EXPECT_EQ(straight.codes(), strided.codes());
    }
  }
}

TEST(activate, nan_stays_in_its_element) {
  for (activation const kind : every_activation) {
    test_tensor gate(dtype::f32, {2, 6}), up(dtype::f32, {2, 6}), out(dtype::f32, {2, 6});
    gate.fill_uniform(1).set(nan, 0, 1);
    up.fill_uniform(2).set(nan, 1, 4);
    bool const gated = is_gated(kind);
    activate({{kind}, gate, gated ? up.view() : tensor_view{}, {}, out}, target());
    for (index_t r = 0; r < 2; ++r) {
      for (index_t c = 0; c < 6; ++c) {
        bool const bad = (r == 0 && c == 1) || (gated && r == 1 && c == 4);
        EXPECT_EQ(std::isnan(out.get(r, c)), bad) << name(kind) << " " << r << "," << c;
      }
    }
  }
}

TEST(activate, only_live_rows) {
  test_tensor live(dtype::int64, {1});
  for (index_t const rows : {0, 2, 4}) {
    live.set(static_cast<double>(rows), 0);
    test_tensor gate(dtype::f32, {4, 3}), out(dtype::f32, {4, 3});
    gate.fill([](index_t, index_t, index_t) { return 2.0; });
    activate({{activation::relu2}, gate, {}, live, out}, target());
    for (index_t r = 0; r < 4; ++r) {
      EXPECT_EQ(std::isnan(out.get(r, 2)), r >= rows);
      if (r < rows) {
        EXPECT_EQ(out.get(r, 2), 4.0);
      }
    }
  }
  live.set(5.0, 0);
  test_tensor gate(dtype::f32, {4, 3}), out(dtype::f32, {4, 3});
  activate_args const too_many{{activation::relu2}, gate, {}, live, out};
  if constexpr (test::on_cuda) {
    activate(too_many, target());  // the host cannot see it: no more rows than there are
  } else {
    EXPECT_MOE64_ERROR(activate(too_many, target()), errc::invalid_argument, "live_rows is 5", "4");
  }
}

TEST(activate, wrong_operands_are_refused) {
  test_tensor const gate(dtype::f32, {4, 3}), half(dtype::bf16, {4, 3}), out(dtype::f32, {4, 3});
  EXPECT_MOE64_ERROR(activate({{activation::silu_glu}, gate, {}, {}, out}, target()),
                     errc::invalid_argument, "silu_glu is gated", "absent");
  EXPECT_MOE64_ERROR(activate({{activation::silu}, gate, gate, {}, out}, target()),
                     errc::invalid_argument, "silu is not gated");
  EXPECT_MOE64_ERROR(activate({{}, gate, half, {}, out}, target()), errc::dtype_mismatch, "up",
                     "bf16");
  EXPECT_MOE64_ERROR(
      activate({{activation::gptoss_glu, 1.0F, 0.0F}, gate, gate, {}, out}, target()),
      errc::invalid_argument, "limit is 0");
  EXPECT_MOE64_ERROR(
      activate({{activation::gptoss_glu, 1.0F, -1.0F}, gate, gate, {}, out}, target()),
      errc::invalid_argument, "limit");
  EXPECT_MOE64_ERROR(activate({{static_cast<activation>(9)}, gate, {}, {}, out}, target()),
                     errc::invalid_argument, "activation 9");
  EXPECT_MOE64_ERROR(activate({{activation::silu}, gate, {}, {}, gate}, target()),
                     errc::invalid_argument, "overlaps");
}

// ---- backward -----------------------------------------------------------------------------------

struct backward_outputs {
  test_tensor d_gate, d_up;
  backward_outputs(dtype type, index_t rows, index_t inter, bool gated)
      : d_gate(type, {rows, inter}) {
    if (gated) d_up = test_tensor(type, {rows, inter});
  }
};

TEST(activate_backward, every_kind_against_the_oracle) {
  for (dtype const type : float_types) {
    inputs const in(type, 4, 600);
    test_tensor d_out(type, {4, 600});
    d_out.fill_uniform(8, -2.0, 2.0);
    for (activation const kind : every_activation) {
      bool const gated = is_gated(kind);
      activation_spec const spec{kind, 1.702F, 7.0F};
      backward_outputs const out(type, 4, 600, gated);
      for_each_implementation(
          activate_backward_args{spec,
                                 in.gate,
                                 gated ? in.up.view() : tensor_view{},
                                 d_out,
                                 {},
                                 {},
                                 out.d_gate,
                                 out.d_up},
          [&](activate_backward_args const& args) {
            activate_backward(args, target());
            std::vector<double> gate, up, gate_bound, up_bound;
            for (index_t r = 0; r < 4; ++r) {
              for (index_t c = 0; c < 600; ++c) {
                double const g = in.gate.get(r, c), u = in.up.get(r, c), d = d_out.get(r, c);
                auto const expected = oracle::activate_backward(spec, g, u, d);
                gate.push_back(expected.gate);
                up.push_back(expected.up);
                // A slope has terms x * s * (1 - s), whose relative error is that of 1 - s.
                double const scale = std::fabs(d) * 4.0;
                gate_bound.push_back(bound(spec, g, u, scale, expected.gate, type));
                up_bound.push_back(bound(spec, g, u, scale, expected.up, type));
              }
            }
            EXPECT_EQ(difference(out.d_gate.numbers(), gate, gate_bound), "") << name(kind);
            if (gated) {
              EXPECT_EQ(difference(out.d_up.numbers(), up, up_bound), "") << name(kind);
            }
          });
    }
  }
}

TEST(activate_backward, nothing_flows_through_an_active_clamp) {
  test_tensor gate(dtype::f32, {1, 6}), up(dtype::f32, {1, 6}), d_out(dtype::f32, {1, 6});
  std::vector<double> const gates{3.0, 3.5, -9.0, 1.0, 1.0, 1.0};
  std::vector<double> const ups{1.0, 1.0, 1.0, 3.0, 3.5, -3.5};
  gate.fill([&](index_t, index_t c, index_t) { return gates[static_cast<std::size_t>(c)]; });
  up.fill([&](index_t, index_t c, index_t) { return ups[static_cast<std::size_t>(c)]; });
  d_out.fill([](index_t, index_t, index_t) { return 1.0; });
  for (activation const kind : {activation::gptoss_glu, activation::clamped_silu_glu}) {
    test_tensor const d_gate(dtype::f32, {1, 6}), d_up(dtype::f32, {1, 6});
    activate_backward({{kind, 1.702F, 3.0F}, gate, up, d_out, {}, {}, d_gate, d_up}, target());
    for (index_t c = 0; c < 6; ++c) {
      EXPECT_EQ(d_gate.get(0, c) == 0.0, c == 1) << name(kind) << " " << c;
      EXPECT_EQ(d_up.get(0, c) == 0.0, c == 4 || c == 5) << name(kind) << " " << c;
    }
  }
}

TEST(activate_backward, step_glu_clamps_what_silu_gives_not_what_it_takes) {
  test_tensor gate(dtype::f32, {1, 3}), up(dtype::f32, {1, 3}), d_out(dtype::f32, {1, 3});
  // silu(3.1) is 2.97, silu(3.2) is 3.07
  std::vector<double> const gates{3.1, 3.2, -9.0};
  gate.fill([&](index_t, index_t c, index_t) { return gates[static_cast<std::size_t>(c)]; });
  up.fill([](index_t, index_t, index_t) { return 2.0; });
  d_out.fill([](index_t, index_t, index_t) { return 1.0; });
  activation_spec const spec{activation::step_glu, 1.0F, 3.0F};
  test_tensor const out(dtype::f32, {1, 3}), d_gate(dtype::f32, {1, 3}), d_up(dtype::f32, {1, 3});
  for_each_implementation(activate_args{spec, gate, up, {}, out}, [&](activate_args const& args) {
    activate(args, target());
    EXPECT_NEAR(out.get(0, 0), 2.0 * 3.1 / (1.0 + std::exp(-3.1)), 1e-6);
    EXPECT_EQ(out.get(0, 1), 6.0);
    EXPECT_LT(out.get(0, 2), 0.0);
  });
  for_each_implementation(activate_backward_args{spec, gate, up, d_out, {}, {}, d_gate, d_up},
                          [&](activate_backward_args const& args) {
                            activate_backward(args, target());
                            EXPECT_GT(d_gate.get(0, 0), 1.0);
                            EXPECT_EQ(d_gate.get(0, 1), 0.0);
                            EXPECT_EQ(d_up.get(0, 1), 3.0);
                            EXPECT_NE(d_gate.get(0, 2), 0.0);
                          });
}

TEST(activate_backward, large_arguments_have_the_slope_of_their_asymptote) {
  for (activation const kind : every_activation) {
    if (kind == activation::relu2) continue;  // its slope is as large as its argument
    for (double const x : {-1e30, -1e20, -1e5, -200.0, 200.0, 1e5, 1e20, 1e30}) {
      bool const gated = is_gated(kind);
      test_tensor gate(dtype::f32, {1, 1}), up(dtype::f32, {1, 1}), d_out(dtype::f32, {1, 1});
      gate.set(x, 0, 0);
      up.set(1.0, 0, 0);
      d_out.set(1.0, 0, 0);
      backward_outputs const out(dtype::f32, 1, 1, gated);
      activation_spec const spec{kind, 1.702F, 7.0F};
      activate_backward(
          {spec, gate, gated ? up.view() : tensor_view{}, d_out, {}, {}, out.d_gate, out.d_up},
          target());
      auto const expected = oracle::activate_backward(spec, gate.get(0, 0), 1.0, 1.0);
      EXPECT_NEAR(out.d_gate.get(0, 0), expected.gate, 1e-6) << name(kind) << " at " << x;
    }
  }
}

TEST(activate_backward, weights_of_slots_multiply_the_gradient_first) {
  test_plan const p = test::make_plan({.tokens = 6,
                                       .top_k = 2,
                                       .experts = 3,
                                       .ids = test::random_ids(2, 12, 3),
                                       .weights = test::random_weights(3, 12)});
  ASSERT_LT(p.live(), 12);
  for (dtype const type : float_types) {
    test_tensor gate(type, {12, 9}), up(type, {12, 9}), d_out(type, {12, 9});
    gate.fill_uniform(4, -3, 3);
    up.fill_uniform(5, -3, 3);
    d_out.fill_uniform(6);
    test_tensor const d_gate(type, {12, 9}), d_up(type, {12, 9});
    activate_backward({{}, gate, up, d_out, p.plan, p.plan.live_rows(), d_gate, d_up}, target());
    // The same with d_out multiplied beforehand, in f32, where nothing is rounded in between.
    test_tensor weighted(dtype::f32, {12, 9});
    weighted.fill([&](index_t r, index_t c, index_t) {
      if (r >= p.live()) return nan;
      index_t const slot = p.rows.row_to_slot[static_cast<std::size_t>(r)];
      return oracle::round_to(p.slot_weight.get(slot) * d_out.get(r, c), dtype::f32);
    });
    test_tensor const d_gate_too(type, {12, 9}), d_up_too(type, {12, 9});
    activate_backward({{}, gate, up, weighted, {}, p.plan.live_rows(), d_gate_too, d_up_too},
                      target());
    EXPECT_EQ(d_gate.bytes(), d_gate_too.bytes());
    EXPECT_EQ(d_up.bytes(), d_up_too.bytes());
    EXPECT_TRUE(std::isnan(d_gate.get(11, 0)));  // past the live rows
    EXPECT_FALSE(std::isnan(d_gate.get(p.live() - 1, 0)));
  }
}

TEST(activate_backward, a_nan_weight_gives_nan_whatever_its_payload) {
  // Rounding must not carry out of a payload of ones into the exponent and the sign.
  test_plan p = test::make_plan({.tokens = 4, .top_k = 1, .experts = 1, .ids = {0, 0, 0, 0}});
  for (index_t slot = 0; slot < 4; ++slot) p.slot_weight.set_code(0x7fffffff, slot);
  for (dtype const type : float_types) {
    test_tensor gate(type, {4, 70}), up(type, {4, 70}), d_out(type, {4, 70});
    gate.fill_uniform(4, -3, 3);
    up.fill_uniform(5, -3, 3);
    d_out.fill_uniform(6, 1, 2);
    test_tensor d_gate(type, {4, 70}), d_up(type, {4, 70});
    for_each_implementation(
        activate_backward_args{{}, gate, up, d_out, p.plan, p.plan.live_rows(), d_gate, d_up},
        [&](activate_backward_args const& args) {
          d_gate.fill_uniform(7);
          d_up.fill_uniform(8);
          activate_backward(args, target());
          for (double const d : d_gate.numbers()) EXPECT_TRUE(std::isnan(d));
          for (double const d : d_up.numbers()) EXPECT_TRUE(std::isnan(d));
        });
  }
}

TEST(activate_backward, gradients_may_be_written_interleaved) {
  test_tensor gate(dtype::bf16, {5, 8}), up(dtype::bf16, {5, 8}), d_out(dtype::bf16, {5, 8});
  gate.fill_uniform(1);
  up.fill_uniform(2);
  d_out.fill_uniform(3);
  test_tensor const fused(dtype::bf16, {5, 16}), d_gate(dtype::bf16, {5, 8}),
      d_up(dtype::bf16, {5, 8});
  activate_backward({{}, gate, up, d_out, {}, {}, d_gate, d_up}, target());
  activate_backward(
      {{}, gate, up, d_out, {}, {}, fused.view().every(1, 0, 2), fused.view().every(1, 1, 2)},
      target());
  for (index_t r = 0; r < 5; ++r) {
    for (index_t c = 0; c < 8; ++c) {
      EXPECT_EQ(fused.code(r, 2 * c), d_gate.code(r, c));
      EXPECT_EQ(fused.code(r, 2 * c + 1), d_up.code(r, c));
    }
  }
  EXPECT_MOE64_ERROR(activate_backward({{}, gate, up, d_out, {}, {}, d_gate, {}}, target()),
                     errc::invalid_argument, "d_up is (absent)");
}

}  // namespace
}  // namespace moe64
