// A layer whose experts lie anywhere, forward and backward: the bits of one whose experts lie in
// stacks, and the oracle's answer.
#include "support/places.hpp"

#include "support/error_matcher.hpp"
#include "support/layer_fixture.hpp"
#include "support/layer_implementations.hpp"

#include <gtest/gtest.h>

#include <string>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_memory;
using test::placed_weights;
using test::target;

/// The case with its weights at places.
struct placed_layer {
  layer_memory memory;
  placed_weights gate_up, down;

  explicit placed_layer(layer_case const& c)
      : memory(c),
        gate_up(memory.desc.gate_up.weights, c.seed),
        down(memory.desc.down.weights, c.seed + 1) {
    memory.desc.gate_up.weights = gate_up.stack;
    memory.desc.down.weights = down.stack;
  }
};

/// With what stacks give, bit by bit, and with the oracle.
enum class compared { bits, bits_and_oracle };

void expect_as_stacks(layer_case const& c, compared with = compared::bits) {
  SCOPED_TRACE(test::to_string(c));
  layer_memory const stacks(c);
  stacks.run_forward();
  stacks.run_backward();
  placed_layer const placed(c);
  placed.memory.run_forward();
  placed.memory.run_backward();
  EXPECT_EQ(placed.memory.result().difference(stacks.result()), "");
  if (with == compared::bits) return;
  EXPECT_EQ(test::oracle_difference(c, placed.memory), "");
}

TEST(layer_places, have_the_bits_of_stacks) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    layer_case c = test::random_layer_case(seed);
    // The best may be another one where matrices begin at better addresses.
    if (c.implementation.empty()) c.implementation = "reference";
    expect_as_stacks(c, compared::bits_and_oracle);
  }
}

TEST(layer_places, in_every_mode_and_implementation) {
  for (auto const& [weight, mode] : {std::pair{weight_format::bf16, compute_mode::native},
                                     std::pair{weight_format::e4m3, compute_mode::w8a16},
                                     std::pair{weight_format::e4m3, compute_mode::w8a8}}) {
    layer_case c;
    c.hidden = 256;
    c.inter = 128;
    c.weight = weight;
    if (weight == weight_format::e4m3) c.scale = granularity::block(128, 128);
    c.mode = mode;
    c.io = c.parameter_type = dtype::bf16;
    for (index_t const tokens : {5, 40}) {
      c.route(tokens, 6);
      test::for_each_implementation(c, [](layer_case const& one) { expect_as_stacks(one); });
    }
  }
}

TEST(layer_places, that_are_none_are_refused_on_the_cpu) {
  if constexpr (test::on_cuda) GTEST_SKIP() << "a device cannot see them";
  layer_case c;
  c.route(4, 3, 0.0);
  placed_layer layer(c);
  layer.down.values_place(0, 1) = -1;
  EXPECT_MOE64_ERROR(layer.memory.run_forward(), errc::invalid_argument,
                     "[forward] down places of expert 1 is -1");
}

TEST(layer_places, are_not_for_lora) {
  layer_case c;
  c.lora_gate_up = 2;
  c.route(4, 3, 0.0);
  layer_memory memory(c);
  placed_weights const b(memory.desc.gate_up.lora.b, 3);
  memory.desc.gate_up.lora.b = b.stack;
  EXPECT_MOE64_ERROR(memory.run_forward(), errc::unsupported, "gate_up.lora.b", "table of places");
}

}  // namespace
}  // namespace moe64
