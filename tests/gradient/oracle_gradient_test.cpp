// The oracle's gradients against central differences of its own forward, all in double. Inputs are
// multiples of 2^-8 below 2 in size and steps are 2^-14, so that every perturbed f32 is exact.
#include "oracle/oracle.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace moe64 {
namespace {

constexpr float step = 0x1p-14F;

class random_numbers {
 public:
  /// Multiples of 2^-8 in [-1, 1].
  std::vector<float> take(index_t count) {
    std::vector<float> result;
    for (index_t i = 0; i < count; ++i) {
      result.push_back(static_cast<float>(static_cast<int>(engine_() % 513U) - 256) * 0x1p-8F);
    }
    return result;
  }
  std::vector<std::uint8_t> take_codes(index_t count) {
    std::vector<std::uint8_t> result;  // below 0x50: every e4m3 of them is a number up to 8
    for (index_t i = 0; i < count; ++i) {
      result.push_back(static_cast<std::uint8_t>(engine_() % 0x50U | (engine_() % 2U) << 7U));
    }
    return result;
  }

 private:
  std::mt19937 engine_{20240611};
};

double slope(float& parameter, std::function<double()> const& loss) {
  float const kept = parameter;
  parameter = kept + step;
  double const above = loss();
  parameter = kept - step;
  double const below = loss();
  parameter = kept;
  return (above - below) / (2.0 * double{step});
}

void expect_slope(double gradient, float& parameter, std::function<double()> const& loss,
                  std::string const& where) {
  double const expected = slope(parameter, loss);
  EXPECT_NEAR(gradient, expected, 1e-6 * (1.0 + std::fabs(expected))) << where;
}

constexpr index_t experts = 3, hidden = 4, inter = 3, rank = 2, tokens = 5, top_k = 2;

/// A layer with everything: biases, LoRA on both projections, sentinels, a duplicate choice, a
/// dropped slot.
struct full_layer {
  activation_spec act;
  gate_up_layout layout = gate_up_layout::concatenated;
  weight_placement weight_on = weight_placement::output;
  bool quantized = false;

  random_numbers random = {};
  index_t rows = is_gated(act.kind) ? 2 * inter : inter;  // of gate_up
  std::vector<float> gate_up = random.take(experts * rows * hidden);
  std::vector<float> gate_up_bias = random.take(experts * rows);
  std::vector<float> gate_up_a = random.take(experts * rank * hidden);
  std::vector<float> gate_up_b = random.take(experts * rows * rank);
  std::vector<float> down =
      random.take(experts * inter * hidden);  // stored [experts, inter, hidden]
  std::vector<float> down_bias = random.take(experts * hidden);
  std::vector<float> down_a = random.take(experts * rank * inter);
  std::vector<float> down_b = random.take(experts * hidden * rank);
  std::vector<float> x = random.take(tokens * hidden);
  std::vector<float> weights = random.take(tokens * top_k);
  std::vector<float> dy = random.take(tokens * hidden);
  std::vector<std::uint8_t> codes = random.take_codes(experts * rows * hidden);
  std::vector<float> scales = random.take(experts * rows * 2);
  std::vector<std::int32_t> ids{0, 2, -1, 1, 2, 2, 0, 3, 2, 1};

  static tensor_view view(std::vector<float> const& values, index_t n, index_t m, index_t k) {
    return tensor_view::contiguous(values.data(), dtype::f32, {n, m, k});
  }
  static tensor_view view(std::vector<float> const& values, index_t n, index_t m) {
    return tensor_view::contiguous(values.data(), dtype::f32, {n, m});
  }
  static weight_stack single(tensor_view values) {
    return weight_stack::single(quantized_view::plain(values));
  }
  [[nodiscard]] bool gated() const { return is_gated(act.kind); }

  [[nodiscard]] weight_stack fused(tensor_view values) const {
    if (!gated()) return single(values);
    auto const parts = split_gate_up(values, layout);
    return weight_stack::gate_up(quantized_view::plain(parts[0]), quantized_view::plain(parts[1]));
  }
  [[nodiscard]] weight_stack quantized_gate_up() const {
    auto const values = tensor_view::contiguous(codes.data(), dtype::e4m3, {experts, rows, hidden});
    auto const grid = view(scales, experts, rows, 2);
    auto const group = granularity::group(3);
    if (!gated()) return weight_stack::single(quantized_view::scaled(values, grid, group));
    auto const parts = split_gate_up(values, layout);
    auto const grids = split_gate_up(grid, layout);
    return weight_stack::gate_up(quantized_view::scaled(parts[0], grids[0], group),
                                 quantized_view::scaled(parts[1], grids[1], group));
  }

  [[nodiscard]] layer_desc desc() const {
    layer_desc result;
    result.gate_up.weights =
        quantized ? quantized_gate_up() : fused(view(gate_up, experts, rows, hidden));
    auto const bias = view(gate_up_bias, experts, rows);
    if (gated()) {
      result.gate_up.bias = split_gate_up(bias, layout);
    } else {
      result.gate_up.bias[0] = bias;
    }
    result.gate_up.lora = {single(view(gate_up_a, experts, rank, hidden)),
                           fused(view(gate_up_b, experts, rows, rank)), 0.75F};
    result.down.weights = single(view(down, experts, inter, hidden).transposed());
    result.down.bias[0] = view(down_bias, experts, hidden);
    result.down.lora = {single(view(down_a, experts, rank, inter)),
                        single(view(down_b, experts, hidden, rank)), -1.5F};
    result.activation = act;
    result.weight_on = weight_on;
    return result;
  }
  [[nodiscard]] oracle::layer_call call() const {
    return {view(x, tokens, hidden),
            tensor_view::contiguous(ids.data(), dtype::int32, {tokens, top_k}),
            view(weights, tokens, top_k), 3};
  }
  [[nodiscard]] oracle::planned plan() const {
    return oracle::plan(call().expert_ids, experts, 0, experts, call().capacity);
  }
  [[nodiscard]] double loss() const {
    layer_desc const layer = desc();
    oracle::planned const planned = plan();
    double sum = 0.0;
    for (index_t token = 0; token < tokens; ++token) {
      std::vector<double> const y = oracle::forward_token(layer, call(), planned, token);
      for (index_t i = 0; i < hidden; ++i) {
        sum += y[static_cast<std::size_t>(i)] *
               double{dy[static_cast<std::size_t>(token * hidden + i)]};
      }
    }
    return sum;
  }
  /// Row of the fused memory that holds row r of the stack.
  [[nodiscard]] index_t memory_row(index_t r) const {
    if (!gated() || layout == gate_up_layout::concatenated) return r;
    return 2 * (r % inter) + r / inter;
  }
};

using layer_case = std::tuple<activation, weight_placement, gate_up_layout>;

class oracle_layer_gradient : public testing::TestWithParam<layer_case> {
 protected:
  static full_layer make(bool quantized = false) {
    auto const [kind, weight_on, layout] = GetParam();
    return full_layer{{kind, 1.702F, 0.625F}, layout, weight_on, quantized};
  }
  /// `gradient` [n, cols] of expert e against `memory` [experts, n, cols], rows through `row_of`.
  static void check(full_layer& layer, std::vector<double> const& gradient,
                    std::vector<float>& memory, index_t cols, index_t expert,
                    std::function<index_t(index_t)> const& row_of, std::string const& name) {
    index_t const n = std::ssize(gradient) / cols;
    ASSERT_EQ(std::ssize(memory), experts * n * cols) << name;
    for (index_t r = 0; r < n; ++r) {
      for (index_t c = 0; c < cols; ++c) {
        auto& parameter = memory[static_cast<std::size_t>((expert * n + row_of(r)) * cols + c)];
        expect_slope(
            gradient[static_cast<std::size_t>(r * cols + c)], parameter,
            [&] { return layer.loss(); },
            name + " of expert " + std::to_string(expert) + " at " + std::to_string(r) + ", " +
                std::to_string(c));
      }
    }
  }
  static void check_tokens(full_layer& layer) {
    auto const dy = full_layer::view(layer.dy, tokens, hidden);
    for (index_t token = 0; token < tokens; ++token) {
      auto const d = oracle::backward_token(layer.desc(), layer.call(), layer.plan(), dy, token);
      for (index_t i = 0; i < hidden; ++i) {
        expect_slope(
            d.x[static_cast<std::size_t>(i)], layer.x[static_cast<std::size_t>(token * hidden + i)],
            [&] { return layer.loss(); }, "x of token " + std::to_string(token));
      }
      for (index_t k = 0; k < top_k; ++k) {
        expect_slope(
            d.weights[static_cast<std::size_t>(k)],
            layer.weights[static_cast<std::size_t>(token * top_k + k)],
            [&] { return layer.loss(); }, "weight of token " + std::to_string(token));
      }
    }
  }
};

TEST_P(oracle_layer_gradient, of_x_and_slot_weights) {
  full_layer layer = make();
  ASSERT_EQ(layer.plan().skipped, 2);
  ASSERT_EQ(layer.plan().dropped, 1);
  check_tokens(layer);
}

TEST_P(oracle_layer_gradient, through_quantised_weights) {
  full_layer layer = make(true);
  check_tokens(layer);
}

TEST_P(oracle_layer_gradient, of_every_parameter) {
  full_layer layer = make();
  auto const dy = full_layer::view(layer.dy, tokens, hidden);
  auto const same = [](index_t r) { return r; };
  auto const fused = [&](index_t r) { return layer.memory_row(r); };
  for (index_t e = 0; e < experts; ++e) {
    auto const d = oracle::backward_expert(layer.desc(), layer.call(), layer.plan(), dy, e);
    check(layer, d.gate_up.weights, layer.gate_up, hidden, e, fused, "gate_up weights");
    check(layer, d.gate_up.bias, layer.gate_up_bias, 1, e, fused, "gate_up bias");
    check(layer, d.gate_up.lora_a, layer.gate_up_a, hidden, e, same, "gate_up A");
    check(layer, d.gate_up.lora_b, layer.gate_up_b, rank, e, fused, "gate_up B");
    std::vector<double> transposed;
    for (index_t c = 0; c < inter; ++c) {
      for (index_t r = 0; r < hidden; ++r) {
        transposed.push_back(d.down.weights[static_cast<std::size_t>(r * inter + c)]);
      }
    }
    check(layer, transposed, layer.down, hidden, e, same, "down weights, transposed");
    check(layer, d.down.bias, layer.down_bias, 1, e, same, "down bias");
    check(layer, d.down.lora_a, layer.down_a, inter, e, same, "down A");
    check(layer, d.down.lora_b, layer.down_b, rank, e, same, "down B");
  }
}

TEST_P(oracle_layer_gradient, of_some_neurons_is_cut_out_of_that_of_all) {
  full_layer layer = make();
  auto const dy = full_layer::view(layer.dy, tokens, hidden);
  auto const place = [](index_t i) { return static_cast<std::size_t>(i); };
  std::vector<index_t> const some{1, inter - 1};
  index_t const count = std::ssize(some);
  for (index_t e = 0; e < experts; ++e) {
    auto const all = oracle::backward_expert(layer.desc(), layer.call(), layer.plan(), dy, e);
    auto const cut =
        oracle::backward_neurons(layer.desc(), layer.call(), layer.plan(), dy, e, some);
    if (cut.down.bias.empty()) continue;  // an expert without rows
    index_t const parts = std::ssize(cut.gate_up.bias) / count;
    auto const rows_of = [&](std::vector<double> const& whole, index_t cols) {
      std::vector<double> chosen;
      for (index_t part = 0; part < parts; ++part) {
        for (index_t const neuron : some) {
          auto const row = whole.begin() + (part * inter + neuron) * cols;
          chosen.insert(chosen.end(), row, row + cols);
        }
      }
      return chosen;
    };
    auto const cols_of = [&](std::vector<double> const& whole) {
      std::vector<double> chosen;
      for (index_t row = 0; row < std::ssize(whole) / inter; ++row) {
        for (index_t const neuron : some) chosen.push_back(whole[place(row * inter + neuron)]);
      }
      return chosen;
    };
    using testing::DoubleNear;
    using testing::Pointwise;
    EXPECT_THAT(cut.gate_up.weights,
                Pointwise(DoubleNear(1e-12), rows_of(all.gate_up.weights, hidden)));
    EXPECT_THAT(cut.gate_up.bias, Pointwise(DoubleNear(1e-12), rows_of(all.gate_up.bias, 1)));
    EXPECT_THAT(cut.gate_up.lora_b,
                Pointwise(DoubleNear(1e-12), rows_of(all.gate_up.lora_b, rank)));
    EXPECT_THAT(cut.down.weights, Pointwise(DoubleNear(1e-12), cols_of(all.down.weights)));
    EXPECT_THAT(cut.down.bias, Pointwise(DoubleNear(1e-12), all.down.bias));
    EXPECT_THAT(cut.down.lora_a, Pointwise(DoubleNear(1e-12), cols_of(all.down.lora_a)));
    EXPECT_TRUE(cut.gate_up.lora_a.empty() && cut.down.lora_b.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    all, oracle_layer_gradient,
    testing::Combine(testing::Values(activation::silu_glu, activation::gelu_glu,
                                     activation::gelu_tanh_glu, activation::gptoss_glu,
                                     activation::clamped_silu_glu, activation::silu,
                                     activation::gelu, activation::relu2, activation::step_glu),
                     testing::Values(weight_placement::output, weight_placement::input),
                     testing::Values(gate_up_layout::concatenated, gate_up_layout::interleaved)),
    [](auto const& given) {
      bool const on_input = std::get<1>(given.param) == weight_placement::input;
      return std::string(name(std::get<0>(given.param))) + (on_input ? "_input_" : "_output_") +
             std::string(name(std::get<2>(given.param)));
    });

TEST(oracle_activation_gradient, every_kind) {
  double const h = 0x1p-14;
  for (int kind = 0; kind <= static_cast<int>(last_activation); ++kind) {
    activation_spec const spec{static_cast<activation>(kind), 1.702F, 1.5F};
    for (double const gate : {-3.0, -1.25, -0.5, 0.25, 1.0, 1.75, 4.0}) {
      for (double const up : {-2.0, -0.75, 0.5, 1.25, 3.0}) {
        auto const d = oracle::activate_backward(spec, gate, up, 2.0);
        double const d_gate =
            (oracle::activate(spec, gate + h, up) - oracle::activate(spec, gate - h, up)) / h;
        double const d_up =
            (oracle::activate(spec, gate, up + h) - oracle::activate(spec, gate, up - h)) / h;
        EXPECT_NEAR(d.gate, d_gate, 1e-7) << name(spec.kind) << " at " << gate << ", " << up;
        EXPECT_NEAR(d.up, d_up, 1e-7) << name(spec.kind) << " at " << gate << ", " << up;
      }
    }
  }
}

class oracle_route_gradient : public testing::TestWithParam<std::tuple<scoring, bool>> {};

TEST_P(oracle_route_gradient, of_the_logits) {
  route_options const options{std::get<0>(GetParam()), std::get<1>(GetParam()), 2.5F};
  // Gaps are wider than a step: the choice does not change.
  std::vector<float> logits{0.5F, -1.25F, 1.75F, 0.25F, 1.0F, -0.5F, 0.75F, 2.0F, -2.0F, 0.0F};
  std::vector<float> const d_weights{1.5F, -0.5F, 2.0F, 0.25F, 1.0F, -3.0F};
  index_t const all = 5, chosen = 3;
  auto const logit_view = tensor_view::contiguous(logits.data(), dtype::f32, {2, all});
  auto const loss = [&] {
    auto const routed = oracle::route(logit_view, {}, options, chosen);
    double sum = 0.0;
    for (std::size_t i = 0; i < d_weights.size(); ++i) {
      sum += routed.weights[i] * double{d_weights[i]};
    }
    return sum;
  };
  auto const ids = oracle::route(logit_view, {}, options, chosen).ids;
  auto const d_logits = oracle::route_backward(
      logit_view, options, tensor_view::contiguous(ids.data(), dtype::int64, {2, chosen}),
      tensor_view::contiguous(d_weights.data(), dtype::f32, {2, chosen}));
  ASSERT_EQ(d_logits.size(), logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    expect_slope(d_logits[i], logits[i], loss, "logit " + std::to_string(i));
  }
}

TEST_P(oracle_route_gradient, sentinels_are_as_if_they_were_not_there) {
  route_options const options{std::get<0>(GetParam()), std::get<1>(GetParam()), 1.0F};
  std::vector<float> const logits{0.5F, -1.25F, 1.75F};
  auto const logit_view = tensor_view::contiguous(logits.data(), dtype::f32, {1, 3});
  std::vector<std::int64_t> const with{2, -1, 0, 3}, without{2, 0};
  std::vector<float> const d_with{1.5F, std::nanf(""), -0.5F, std::nanf("")},
      d_without{1.5F, -0.5F};
  auto const gradient = [&](std::vector<std::int64_t> const& ids, std::vector<float> const& d) {
    index_t const k = std::ssize(ids);
    return oracle::route_backward(logit_view, options,
                                  tensor_view::contiguous(ids.data(), dtype::int64, {1, k}),
                                  tensor_view::contiguous(d.data(), dtype::f32, {1, k}));
  };
  EXPECT_EQ(gradient(with, d_with), gradient(without, d_without));
  EXPECT_EQ(gradient({-1, 3}, {1.0F, 1.0F}), std::vector<double>(3, 0.0));
}

INSTANTIATE_TEST_SUITE_P(all, oracle_route_gradient,
                         testing::Combine(testing::Values(scoring::softmax,
                                                          scoring::softmax_of_selected,
                                                          scoring::sigmoid),
                                          testing::Bool()));

}  // namespace
}  // namespace moe64
