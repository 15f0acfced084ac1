// activate and its gradient on a CUDA device: every bf16 and f16, and f32 of every size. target()
// compares every call with the CPU, bit for bit.
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace moe64 {
namespace {

using test::for_each_implementation;
using test::random_source;
using test::target;
using test::test_tensor;

constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};
constexpr activation every_activation[] = {activation::silu_glu,
                                           activation::gelu_glu,
                                           activation::gelu_tanh_glu,
                                           activation::gptoss_glu,
                                           activation::clamped_silu_glu,
                                           activation::step_glu,
                                           activation::silu,
                                           activation::gelu,
                                           activation::relu2};

/// Gates of all bit patterns of 16 bits; of 32 bits random ones, half of them of ordinary size.
test_tensor every_gate(dtype type) {
  test_tensor gate(type, {512, 128});
  random_source const random(6);
  for (index_t i = 0; i < 512; ++i) {
    for (index_t j = 0; j < 128; ++j) {
      index_t const n = 128 * i + j;
      if (type != dtype::f32) {
        gate.set_code(static_cast<std::uint64_t>(n), i, j);
      } else if (n % 2 == 0) {
        gate.set_code(random.bits(n) & 0xffffffffU, i, j);
      } else {
        gate.set(random.uniform(n, -120.0, 120.0), i, j);
      }
    }
  }
  return gate;
}

TEST(cuda_activate, every_gate_of_every_kind) {
  for (dtype const type : float_types) {
    test_tensor const gate = every_gate(type);
    test_tensor up(type, {512, 128}), d_out(type, {512, 128});
    up.fill_uniform(2, -9.0, 9.0);
    d_out.fill_uniform(3, -2.0, 2.0);
    for (activation const kind : every_activation) {
      SCOPED_TRACE(std::string(name(kind)) + " " + std::string(name(type)));
      bool const gated = is_gated(kind);
      tensor_view const second = gated ? up.view() : tensor_view{};
      test_tensor const out(type, {512, 128}), d_gate(type, {512, 128}), d_up(type, {512, 128});
      for (float const alpha : {1.702F, 0.0F, 40.0F}) {
        activation_spec const spec{kind, alpha, 7.0F};
        for_each_implementation(activate_args{spec, gate, second, {}, out},
                                [](activate_args const& call) { activate(call, target()); });
        for_each_implementation(
            activate_backward_args{
                spec, gate, second, d_out, {}, {}, d_gate, gated ? d_up.view() : tensor_view{}},
            [](activate_backward_args const& call) { activate_backward(call, target()); });
      }
    }
  }
}

TEST(cuda_activate, widths_halves_and_weights) {
  for (index_t const inter : {1, 8, 24, 250, 768, 1032}) {
    test::test_plan const p = test::make_plan({.tokens = 9,
                                               .top_k = 3,
                                               .experts = 4,
                                               .ids = test::random_ids(2, 27, 4),
                                               .weights = test::random_weights(3, 27)});
    for (dtype const type : float_types) {
      test_tensor fused(type, {27, 2 * inter}), d_out(type, {27, inter});
      fused.fill_uniform(4, -8.0, 8.0);
      d_out.fill_uniform(5);
      tensor_view const gate = fused.view().slice(1, 0, inter);
      tensor_view const up = fused.view().slice(1, inter, 2 * inter);
      test_tensor const out(type, {27, inter}), d_fused(type, {27, 2 * inter});
      for_each_implementation(activate_args{{}, gate, up, p.plan.live_rows(), out},
                              [](activate_args const& call) { activate(call, target()); });
      for_each_implementation(
          activate_backward_args{{},
                                 gate,
                                 up,
                                 d_out,
                                 p.plan,
                                 p.plan.live_rows(),
                                 d_fused.view().slice(1, 0, inter),
                                 d_fused.view().slice(1, inter, 2 * inter)},
          [](activate_backward_args const& call) { activate_backward(call, target()); });
    }
  }
}

}  // namespace
}  // namespace moe64
