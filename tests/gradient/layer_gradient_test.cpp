// Gradients of the layer in f32 against central differences of the oracle's forward in double.
// Numbers are multiples of 2^-8 and steps are 2^-14, so that every perturbed f32 is exact.
#include "oracle/oracle.hpp"
#include "support/layer_fixture.hpp"
#include "support/layer_implementations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_memory;
using test::layer_result;

constexpr float step = 0x1p-14F;

/// Sums here are shorter than 64 products of numbers of size 1, so that f32 is good to about
/// 64 * 2^-24 = 2^-18 of the largest; the difference quotient is off by step^2 = 2^-28 times a
/// third derivative.
constexpr double tolerance = 0x1p-18;

/// sum of dy * y, in double.
double loss(layer_memory const& memory) {
  auto const call = memory.call();
  auto const rows = memory.rows();
  double sum = 0.0;
  for (index_t t = 0; t < memory.shape.tokens; ++t) {
    auto const y = oracle::forward_token(memory.desc, call, rows, t);
    for (std::size_t i = 0; i < y.size(); ++i) {
      sum += y[i] * oracle::at(memory.backward.dy, t, static_cast<index_t>(i));
    }
  }
  return sum;
}

float& element(tensor_view const& view, index_t i, index_t j, index_t k) {
  return static_cast<float*>(
      view.data)[i * view.stride[0] + j * view.stride[1] + k * view.stride[2]];
}

/// What every implementation that takes the case gives as gradients.
using results_by_name = std::map<std::string, layer_result>;

void expect_slopes(layer_memory const& memory, results_by_name const& results,
                   std::string const& name, tensor_view const& parameter,
                   tensor_view const& gradient) {
  if (!gradient.present()) return;
  ASSERT_TRUE(parameter.present()) << name;
  index_t const depth = parameter.rank > 2 ? parameter.extent[2] : 1;
  std::vector<double> slopes;
  for (index_t i = 0; i < parameter.extent[0]; ++i) {
    for (index_t j = 0; j < parameter.extent[1]; ++j) {
      for (index_t k = 0; k < depth; ++k) {
        float& number = element(parameter, i, j, k);
        float const kept = number;
        number = kept + step;
        double const above = loss(memory);
        number = kept - step;
        double const below = loss(memory);
        number = kept;
        slopes.push_back((above - below) / (2.0 * double{step}));
      }
    }
  }
  double largest = 1.0;
  for (double const slope : slopes) largest = std::max(largest, std::fabs(slope));
  for (auto const& [implementation, result] : results) {
    std::vector<std::uint64_t> const& found = result.bits.at(name);
    ASSERT_EQ(found.size(), slopes.size());
    for (std::size_t i = 0; i < slopes.size(); ++i) {
      float const number = std::bit_cast<float>(static_cast<std::uint32_t>(found[i]));
      EXPECT_NEAR(double{number}, slopes[i], tolerance * largest)
          << name << " at " << i << " of " << implementation;
    }
  }
}

void expect_all_slopes(layer_case const& c) {
  SCOPED_TRACE(to_string(c));
  results_by_name results;
  test::for_each_implementation(
      c, [&](layer_case const& forced) { results[forced.implementation] = test::run(forced); });
  ASSERT_GE(results.size(), test::on_cuda ? 2U : 3U);  // the best, (scalar,) reference
  layer_memory const memory(c);
  layer_gradients const& d = memory.backward.gradients;
  expect_slopes(memory, results, "dx", memory.forward.x, d.x);
  expect_slopes(memory, results, "d_weights", memory.forward.weights, d.weights);
  auto const projection_slopes = [&](std::string const& base, projection const& p,
                                     projection_gradients const& g) {
    for (int i = 0; i < p.weights.parts(); ++i) {
      auto const part = static_cast<std::size_t>(i);
      std::string const end = "." + std::to_string(i);
      expect_slopes(memory, results, base + ".weights" + end, p.weights.part(i).values(),
                    g.weights[part]);
      expect_slopes(memory, results, base + ".bias" + end, p.bias[part], g.bias[part]);
      expect_slopes(memory, results, base + ".lora_b" + end, p.lora.b.part(i).values(),
                    g.lora_b[part]);
    }
    expect_slopes(memory, results, base + ".lora_a", p.lora.a.part(0).values(), g.lora_a);
  };
  projection_slopes("gate_up", memory.desc.gate_up, d.gate_up);
  projection_slopes("down", memory.desc.down, d.down);
}

layer_case small(std::uint64_t seed) {
  layer_case c;
  c.seed = seed;
  c.numbers = test::layer_numbers::grid;
  c.hidden = 5;
  c.inter = 4;
  c.top_k = 2;
  c.route(5, 3);
  return c;
}

using combination = std::tuple<activation, weight_placement>;

class layer_gradient : public testing::TestWithParam<combination> {
 protected:
  static layer_case make() {
    layer_case c = small(static_cast<std::uint64_t>(std::get<0>(GetParam())) + 1);
    c.act = {std::get<0>(GetParam()), 1.702F, 0.6251F};  // off the grid of what meets it
    c.weight_on = std::get<1>(GetParam());
    return c;
  }
};

TEST_P(layer_gradient, bare) { expect_all_slopes(make()); }

TEST_P(layer_gradient, with_bias) {
  layer_case c = make();
  c.bias = true;
  expect_all_slopes(c);
}

TEST_P(layer_gradient, with_lora) {
  for (int sides = 1; sides <= 3; ++sides) {
    layer_case c = make();
    c.lora_gate_up = (sides & 1) != 0 ? 2 : 0;
    c.lora_down = (sides & 2) != 0 ? 3 : 0;
    expect_all_slopes(c);
  }
}

TEST_P(layer_gradient, with_lora_and_bias_on_frozen_weights) {
  layer_case c = make();
  c.bias = true;
  c.lora_gate_up = 2;
  c.lora_down = 1;
  c.weight = weight_format::e4m3;
  c.scale = granularity::block(3, 2);
  c.storage = test::gate_up_storage::interleaved;
  expect_all_slopes(c);
}

TEST_P(layer_gradient, with_dropped_and_duplicate_slots) {
  layer_case c = make();
  c.bias = true;
  c.capacity = 2;
  c.id(0, 0) = 1;
  c.id(0, 1) = 1;
  layer_memory const memory(c);
  ASSERT_GT(memory.rows().dropped, 0);
  expect_all_slopes(c);
}

INSTANTIATE_TEST_SUITE_P(
    all, layer_gradient,
    testing::Combine(testing::Values(activation::silu_glu, activation::gelu_glu,
                                     activation::gelu_tanh_glu, activation::gptoss_glu,
                                     activation::clamped_silu_glu, activation::silu,
                                     activation::gelu, activation::relu2, activation::step_glu),
                     testing::Values(weight_placement::output, weight_placement::input)),
    [](auto const& given) {
      return std::string(name(std::get<0>(given.param))) +
             (std::get<1>(given.param) == weight_placement::input ? "_input" : "_output");
    });

}  // namespace
}  // namespace moe64
