// Routing, activations and whole layers of the oracle, against values worked out by hand.
#include "moe64/error.hpp"
#include "oracle/oracle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace moe64 {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

constexpr float f32_nan = std::numeric_limits<float>::quiet_NaN();

MATCHER(is_close, "") { return std::fabs(std::get<0>(arg) - std::get<1>(arg)) < 1e-12; }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

tensor_view matrix(std::vector<float> const& values, index_t rows) {
  return tensor_view::contiguous(values.data(), dtype::f32, {rows, std::ssize(values) / rows});
}

tensor_view matrix(std::vector<std::int64_t> const& values, index_t rows) {
  return tensor_view::contiguous(values.data(), dtype::int64, {rows, std::ssize(values) / rows});
}

// ---- route --------------------------------------------------------------------------------------

float log_of(double x) { return static_cast<float>(std::log(x)); }

TEST(oracle_route, softmax_then_choose) {
  std::vector<float> const logits{log_of(1), log_of(4), log_of(2), log_of(1)};
  auto const plain = oracle::route(matrix(logits, 1), {}, {}, 3);
  EXPECT_THAT(plain.ids, ElementsAre(1, 2, 0));  // 0 and 3 tie
  EXPECT_THAT(plain.weights, Pointwise(DoubleNear(1e-7), {0.5, 0.25, 0.125}));
  auto const scaled =
      oracle::route(matrix(logits, 1), {}, {.renormalize = true, .scaling = 2.5F}, 2);
  EXPECT_THAT(scaled.weights, Pointwise(DoubleNear(1e-6), {2.5 * 2 / 3, 2.5 / 3}));
}

TEST(oracle_route, choose_then_softmax) {
  std::vector<float> const logits{0, 3, 1, 2};
  std::vector<float> const bias{10, 0, 0, 0};
  auto const biased = tensor_view::contiguous(bias.data(), dtype::f32, {4});
  auto const chosen =
      oracle::route(matrix(logits, 1), biased, {.score = scoring::softmax_of_selected}, 2);
  EXPECT_THAT(chosen.ids, ElementsAre(0, 1));
  EXPECT_THAT(chosen.weights, Pointwise(is_close(), {sigmoid(-3), sigmoid(3)}));
}

TEST(oracle_route, sigmoid_with_a_bias_that_only_chooses) {
  std::vector<float> const logits{0, 2, 1, -1};
  std::vector<float> const bias{0, 0, 0, 5};
  auto const biased = tensor_view::contiguous(bias.data(), dtype::f32, {4});
  auto const chosen = oracle::route(matrix(logits, 1), biased, {.score = scoring::sigmoid}, 2);
  EXPECT_THAT(chosen.ids, ElementsAre(3, 1));
  EXPECT_THAT(chosen.weights, Pointwise(is_close(), {sigmoid(-1), sigmoid(2)}));
}

TEST(oracle_route, nan_ranks_last_and_ids_stay_legal) {
  float const low = -std::numeric_limits<float>::infinity();
  std::vector<float> const logits{f32_nan, low, f32_nan, 1};
  auto const chosen =
      oracle::route(matrix(logits, 1), {}, {.score = scoring::softmax_of_selected}, 4);
  EXPECT_THAT(chosen.ids, ElementsAre(3, 1, 0, 2));
}

TEST(oracle_route, only_experts_of_kept_groups_are_chosen) {
  std::vector<float> const logits{9, 0, 5, 5, 6, 3};  // groups (9, 0), (5, 5), (6, 3)
  route_options options{.score = scoring::softmax_of_selected};
  options.expert_groups = 3;
  options.groups_kept = 1;
  EXPECT_THAT(oracle::route(matrix(logits, 1), {}, options, 2).ids, ElementsAre(2, 3));
  options.group_by = group_score::max;
  EXPECT_THAT(oracle::route(matrix(logits, 1), {}, options, 2).ids, ElementsAre(0, 1));
  options.groups_kept = 2;
  EXPECT_THAT(oracle::route(matrix(logits, 1), {}, options, 3).ids, ElementsAre(0, 4, 5));
  options.group_by = group_score::top2_sum;  // 9, 10, 9: the tie goes to the lower group
  EXPECT_THAT(oracle::route(matrix(logits, 1), {}, options, 3).ids, ElementsAre(0, 2, 3));
  EXPECT_THROW(static_cast<void>(oracle::route(matrix(logits, 1), {}, options, 5)), error);
}

// ---- plan ---------------------------------------------------------------------------------------

TEST(oracle_plan, rows_are_sorted_by_expert_then_slot) {
  std::vector<std::int64_t> const ids{2, 0, -1, 2, 3, 0};
  auto const rows = oracle::plan(matrix(ids, 3), 3, 0, 3, -1);
  EXPECT_THAT(rows.expert_begin, ElementsAre(0, 2, 2, 4));
  EXPECT_THAT(rows.row_to_slot, ElementsAre(1, 5, 0, 3));
  EXPECT_THAT(rows.slot_to_row, ElementsAre(2, 0, -1, 3, -1, 1));
  EXPECT_EQ(rows.skipped, 2);
}

TEST(oracle_plan, capacity_and_sub_range) {
  std::vector<std::int64_t> const ids{1, 1, 0, 1, 2, 3};
  auto const rows = oracle::plan(matrix(ids, 3), 4, 1, 2, 2);
  EXPECT_THAT(rows.expert_begin, ElementsAre(0, 2, 3));
  EXPECT_THAT(rows.row_to_slot, ElementsAre(0, 1, 4));
  EXPECT_EQ(rows.dropped, 1);
  EXPECT_EQ(rows.elsewhere, 2);
  EXPECT_EQ(rows.skipped, 0);
}

TEST(oracle_plan, other_ids_are_refused) {
  for (std::int64_t const id : {std::int64_t{-2}, std::int64_t{5}, std::int64_t{1} << 60}) {
    std::vector<std::int64_t> const ids{0, id};
    EXPECT_THROW(static_cast<void>(oracle::plan(matrix(ids, 1), 4, 0, 4, -1)), error) << id;
  }
}

// ---- activate -----------------------------------------------------------------------------------

TEST(oracle_activate, known_values) {
  EXPECT_DOUBLE_EQ(oracle::activate({activation::silu_glu}, 2, 3), 6 * sigmoid(2));
  EXPECT_DOUBLE_EQ(oracle::activate({activation::silu}, -2, 99), -2 * sigmoid(-2));
  EXPECT_NEAR(oracle::activate({activation::gelu_glu}, 1, 2), 2 * 0.8413447460685429, 1e-15);
  EXPECT_NEAR(oracle::activate({activation::gelu}, -1, 0), -0.15865525393145707, 1e-15);
  double const z = std::sqrt(2 / std::acos(-1.0)) * (1 + 0.044715);
  EXPECT_NEAR(oracle::activate({activation::gelu_tanh_glu}, 1, 2), 1 + std::tanh(z), 1e-14);
  EXPECT_EQ(oracle::activate({activation::relu2}, 3, 0), 9.0);
  EXPECT_EQ(oracle::activate({activation::relu2}, -3, 0), 0.0);
}

TEST(oracle_activate, clamps) {
  activation_spec const gptoss{activation::gptoss_glu, 2.0F, 7.0F};
  EXPECT_DOUBLE_EQ(oracle::activate(gptoss, 1, 0.5), sigmoid(2) * 1.5);
  EXPECT_DOUBLE_EQ(oracle::activate(gptoss, 100, -100), 7 * sigmoid(14) * -6);
  EXPECT_DOUBLE_EQ(oracle::activate(gptoss, -10, 100), -10 * sigmoid(-20) * 8);
  activation_spec const clamped{activation::clamped_silu_glu, 2.0F, 7.0F};
  EXPECT_DOUBLE_EQ(oracle::activate(clamped, 100, 8), 7 * sigmoid(7) * 7);
  EXPECT_TRUE(std::isnan(oracle::activate(clamped, std::nan(""), 8)));

  EXPECT_EQ(oracle::activate_backward(clamped, 7.5, 1, 1).gate, 0.0);
  EXPECT_NE(oracle::activate_backward(clamped, 7.0, 1, 1).gate, 0.0);  // at the limit it passes
  EXPECT_EQ(oracle::activate_backward(clamped, 1, -7.5, 1).up, 0.0);
  EXPECT_NE(oracle::activate_backward(clamped, 1, -7.0, 1).up, 0.0);
  EXPECT_NE(oracle::activate_backward(clamped, -7.5, 1, 1).gate, 0.0);  // gates have no lower limit

  activation_spec const step{activation::step_glu, 2.0F, 7.0F};
  EXPECT_DOUBLE_EQ(oracle::activate(step, 7, 2), 14 * sigmoid(7));  // silu(7) is below 7
  EXPECT_EQ(oracle::activate(step, 100, -8), -49.0);
  EXPECT_DOUBLE_EQ(oracle::activate(step, -10, 1), -10 * sigmoid(-10));
  EXPECT_TRUE(std::isnan(oracle::activate(step, std::nan(""), 8)));
  EXPECT_NE(oracle::activate_backward(step, 7, 1, 1).gate, 0.0);
  EXPECT_EQ(oracle::activate_backward(step, 7.5, 1, 1).gate, 0.0);
  EXPECT_EQ(oracle::activate_backward(step, 1, 7.5, 1).up, 0.0);
}

// ---- the layer ----------------------------------------------------------------------------------

/// hidden 2, inter 1, relu2: gate_up (1 2), bias 1; down (3, -1)^T, bias (10, 20).
struct tiny_layer {
  std::vector<float> up{1, 2}, up_bias{1}, down{3, -1}, down_bias{10, 20};
  layer_desc desc() const {
    layer_desc layer;
    layer.gate_up.weights = stack(up, 1, 2);
    layer.gate_up.bias[0] = matrix(up_bias, 1);
    layer.down.weights = stack(down, 2, 1);
    layer.down.bias[0] = matrix(down_bias, 1);
    layer.activation.kind = activation::relu2;
    return layer;
  }
  static weight_stack stack(std::vector<float> const& values, index_t rows, index_t cols) {
    return weight_stack::single(
        quantized_view::plain(tensor_view::contiguous(values.data(), dtype::f32, {1, rows, cols})));
  }
};

TEST(oracle_layer, one_token_by_hand) {
  tiny_layer const parts;
  layer_desc layer = parts.desc();
  std::vector<float> const x{1, 0.5F}, weights{2}, dy{1, 3};
  std::vector<std::int64_t> const ids{0};
  oracle::layer_call const call{matrix(x, 1), matrix(ids, 1), matrix(weights, 1)};
  auto const rows = oracle::plan(call.expert_ids, 1, 0, 1, -1);

  // h = 1 + 1 + 1 = 3, a = 9, down = (37, 11).
  EXPECT_THAT(oracle::forward_token(layer, call, rows, 0), ElementsAre(74.0, 22.0));
  // d down = (2, 6); d a = 6 - 6 = 0.
  auto const on_output = oracle::backward_token(layer, call, rows, matrix(dy, 1), 0);
  EXPECT_THAT(on_output.x, ElementsAre(0.0, 0.0));
  EXPECT_THAT(on_output.weights, ElementsAre(70.0));

  // x becomes (2, 1): h = 5, a = 25, down = (85, -5).
  layer.weight_on = weight_placement::input;
  EXPECT_THAT(oracle::forward_token(layer, call, rows, 0), ElementsAre(85.0, -5.0));
  // dy (1, 1): d a = 2, d h = 2 * 2 * 5 = 20, d (w x) = (20, 40).
  std::vector<float> const ones{1, 1};
  auto const on_input = oracle::backward_token(layer, call, rows, matrix(ones, 1), 0);
  EXPECT_THAT(on_input.x, ElementsAre(40.0, 80.0));
  EXPECT_THAT(on_input.weights, ElementsAre(40.0));
  auto const expert = oracle::backward_expert(layer, call, rows, matrix(ones, 1), 0);
  EXPECT_THAT(expert.gate_up.weights, ElementsAre(40.0, 20.0));
  EXPECT_THAT(expert.gate_up.bias, ElementsAre(20.0));
  EXPECT_THAT(expert.down.weights, ElementsAre(25.0, 25.0));
  EXPECT_THAT(expert.down.bias, ElementsAre(1.0, 1.0));
  EXPECT_TRUE(expert.down.lora_a.empty());
  EXPECT_EQ(oracle::slot_cost(layer), 4.0);
}

TEST(oracle_layer, lora_by_hand) {
  tiny_layer const parts;
  layer_desc layer = parts.desc();
  std::vector<float> const a{1, -1}, b{4};
  layer.gate_up.lora = {tiny_layer::stack(a, 1, 2), tiny_layer::stack(b, 1, 1), 0.5F};
  std::vector<float> const x{1, 0.5F};
  std::vector<std::int64_t> const ids{0};
  oracle::layer_call const call{matrix(x, 1), matrix(ids, 1), {}};
  auto const rows = oracle::plan(call.expert_ids, 1, 0, 1, -1);
  // u = 0.5, h = 3 + 0.5 * 4 * 0.5 = 4, a = 16.
  EXPECT_THAT(oracle::forward_token(layer, call, rows, 0), ElementsAre(58.0, 4.0));
  // dy (1, 0): d a = 3, d h = 24, d u = 0.5 * 4 * 24 = 48.
  std::vector<float> const dy{1, 0};
  auto const expert = oracle::backward_expert(layer, call, rows, matrix(dy, 1), 0);
  EXPECT_THAT(expert.gate_up.lora_a, ElementsAre(48.0, 24.0));
  EXPECT_THAT(expert.gate_up.lora_b, ElementsAre(6.0));
  EXPECT_THAT(oracle::backward_token(layer, call, rows, matrix(dy, 1), 0).x,
              ElementsAre(24.0 + 48.0, 48.0 - 48.0));
  EXPECT_EQ(oracle::slot_cost(layer), 7.0);
}

TEST(oracle_layer, a_slot_without_a_row_adds_nothing_even_if_its_weight_is_nan) {
  tiny_layer const parts;
  layer_desc const layer = parts.desc();
  std::vector<float> const x{1, 0.5F, 1, 0.5F}, weights{f32_nan, 2, f32_nan, f32_nan};
  std::vector<std::int64_t> const ids{-1, 0, 1, -1};
  oracle::layer_call const call{matrix(x, 2), matrix(ids, 2), matrix(weights, 2)};
  auto const rows = oracle::plan(call.expert_ids, 1, 0, 1, -1);
  EXPECT_THAT(oracle::forward_token(layer, call, rows, 0), ElementsAre(74.0, 22.0));
  EXPECT_THAT(oracle::forward_token(layer, call, rows, 1), ElementsAre(0.0, 0.0));
  std::vector<float> const dy{1, 1, 1, 1};
  EXPECT_THAT(oracle::backward_token(layer, call, rows, matrix(dy, 2), 0).weights,
              ElementsAre(0.0, 48.0));
}

TEST(oracle_layer, w8a8_quantizes_x_and_the_inner_row_but_not_for_lora) {
  std::array<std::int8_t, 2> const up{1, 1}, down{1, 2};
  std::array<float, 1> const scale{1.0F};
  auto const stack = [&](std::array<std::int8_t, 2> const& codes, index_t rows, index_t cols) {
    return weight_stack::single(quantized_view::scaled(
        tensor_view::contiguous(codes.data(), dtype::int8, {1, rows, cols}),
        tensor_view::contiguous(scale.data(), dtype::f32, {1, 1, 1}), granularity::tensor()));
  };
  layer_desc layer;
  layer.gate_up.weights = stack(up, 1, 2);
  layer.down.weights = stack(down, 2, 1);
  layer.activation.kind = activation::relu2;
  // The peak 127 makes the scale 1, so that 1.25 is read as 1; LoRA still sees 1.25.
  std::vector<float> const x{127, 1.25F}, a{0, 1}, b{8};
  std::vector<std::int64_t> const ids{0};
  oracle::layer_call call{matrix(x, 1), matrix(ids, 1), {}};
  auto const rows = oracle::plan(call.expert_ids, 1, 0, 1, -1);
  EXPECT_EQ(oracle::forward_token(layer, call, rows, 0)[1], 2 * 128.25 * 128.25);
  call.mode = compute_mode::w8a8;
  // The inner row has one number: its code is 127 and its scale an f32.
  double const inner = 127.0 * double{128.0F * 128.0F / 127.0F};
  EXPECT_THAT(oracle::forward_token(layer, call, rows, 0), ElementsAre(inner, 2 * inner));
  layer.gate_up.lora = {tiny_layer::stack(a, 1, 2), tiny_layer::stack(b, 1, 1), 1.0F};
  double const with_lora = 127.0 * double{138.0F * 138.0F / 127.0F};
  EXPECT_THAT(oracle::forward_token(layer, call, rows, 0), ElementsAre(with_lora, 2 * with_lora));
}

TEST(oracle_layer, w8a8_beside_blocks_has_a_scale_for_128_columns) {
  std::vector<std::int8_t> const ones(130, 1);
  std::vector<float> const scales(26, 1.0F);
  auto const stack = [&](index_t rows, index_t cols) {
    granularity const layout = granularity::block(5, 64);
    return weight_stack::single(quantized_view::scaled(
        tensor_view::contiguous(ones.data(), dtype::int8, {1, rows, cols}),
        tensor_view::contiguous(scales.data(), dtype::f32,
                                {1, layout.grid_rows(rows), layout.grid_cols(cols)}),
        layout));
  };
  layer_desc layer;
  layer.gate_up.weights = stack(1, 130);
  layer.down.weights = stack(130, 1);
  layer.activation.kind = activation::relu2;
  std::vector<float> x(130, 0.0F);
  x[0] = 127;
  x[127] = 1.25F;  // shares the scale 1 of column 0: read as 1
  x[128] = 0.75F;  // has its own
  std::vector<std::int64_t> const ids{0};
  oracle::layer_call const call{matrix(x, 1), matrix(ids, 1), {}, -1, compute_mode::w8a8};
  auto const rows = oracle::plan(call.expert_ids, 1, 0, 1, -1);
  double const inner = 127.0 * double{128.75F * 128.75F / 127.0F};
  EXPECT_EQ(oracle::forward_token(layer, call, rows, 0), std::vector<double>(130, inner));
}

TEST(oracle_layer, w8a8_quantizes_what_memory_of_the_type_of_x_holds) {
  std::array<std::int8_t, 2> const up{1, 1};
  std::array<float, 1> const scale{1.0F}, bias{3.0F};
  auto const grid = tensor_view::contiguous(scale.data(), dtype::f32, {1, 1, 1});
  auto const stack = [&](index_t rows, index_t cols) {
    return weight_stack::single(
        quantized_view::scaled(tensor_view::contiguous(up.data(), dtype::int8, {1, rows, cols}),
                               grid, granularity::tensor()));
  };
  layer_desc layer;
  layer.gate_up.weights = stack(1, 2);
  layer.gate_up.bias[0] = tensor_view::contiguous(bias.data(), dtype::f32, {1, 1});
  layer.down.weights = stack(2, 1);
  layer.activation.kind = activation::relu2;
  std::array<std::uint16_t, 2> const x{0x42fe, 0x42fe};  // bf16 127
  std::vector<std::int64_t> const ids{0};
  oracle::layer_call call{
      tensor_view::contiguous(x.data(), dtype::bf16, {1, 2}), matrix(ids, 1), {}};
  auto const rows = oracle::plan(call.expert_ids, 1, 0, 1, -1);
  EXPECT_EQ(oracle::forward_token(layer, call, rows, 0)[0], 257.0 * 257.0);
  call.mode = compute_mode::w8a8;  // 257 is half way between the bf16 256 and 258
  EXPECT_EQ(oracle::forward_token(layer, call, rows, 0)[0],
            127.0 * double{256.0F * 256.0F / 127.0F});
}

TEST(oracle_layer, w8a8_is_refused_for_plain_weights) {
  tiny_layer const parts;
  std::vector<float> const x{1, 0.5F};
  std::vector<std::int64_t> const ids{0};
  oracle::layer_call const call{matrix(x, 1), matrix(ids, 1), {}, -1, compute_mode::w8a8};
  auto const rows = oracle::plan(call.expert_ids, 1, 0, 1, -1);
  EXPECT_THROW(static_cast<void>(oracle::forward_token(parts.desc(), call, rows, 0)), error);
}

}  // namespace
}  // namespace moe64
