// One test per mistake that the other tests could not see. Each is named after the mistake.
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/implementations.hpp"
#include "support/routing.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

/// Codes are summed over at most 128 columns before they are scaled. Where the roundings are shows
/// in the last bit only, and only for some scales: this takes the first of them.
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
        grouped_gemm(args, target());
        EXPECT_EQ(y.code(0, 0), std::bit_cast<std::uint32_t>(promoted()));
      });
}

TEST(regression, a_nan_code_stays_nan_under_a_scale_of_zero) {
  constexpr index_t outs = 5;
  constexpr index_t depth = 64;
  test_tensor x(dtype::bf16, {1, depth});
  x.fill([](index_t, index_t, index_t) { return 1.0; });
  test_tensor weights(dtype::e4m3, {1, outs, depth});
  weights.fill([](index_t, index_t n, index_t k) {
    return n == 2 && k == 7 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  });
  test_tensor scales(dtype::f32, {1, outs, 1});
  scales.fill([](index_t, index_t, index_t) { return 0.0; });
  test_tensor const expert_begin = make_expert_begin({1});
  test_tensor y(dtype::f32, {1, outs});
  for_each_implementation(grouped_gemm_args{.x = quantized_view::plain(x),
                                            .weights = weight_stack::single(quantized_view::scaled(
                                                weights, scales, granularity::row())),
                                            .expert_begin = expert_begin,
                                            .y = y},
                          [&](grouped_gemm_args const& args) {
                            y.poison();
                            grouped_gemm(args, target());
                            for (index_t n = 0; n < outs; ++n) {
                              float const sum =
                                  std::bit_cast<float>(static_cast<std::uint32_t>(y.code(0, n)));
                              EXPECT_EQ(std::isnan(sum), n == 2) << "output " << n << " is " << sum;
                            }
                          });
}

test_tensor integers(dtype type, std::vector<index_t> const& extents) {
  test_tensor result(type, extents);
  result.fill_integers(1, -2, 2);
  return result;
}

/// Small legal calls of the operations, each with the same operand `changed` before it is made.
class small_calls {
 public:
  using change = std::function<void(tensor_view& operand)>;

  /// call(name of the operand, what makes the call) for every output; `inputs`: for inputs as well.
  void each(change const& changed, bool inputs,
            std::function<void(std::string const&, std::function<void()> const&)> const& call) {
    auto const with = [&](tensor_view operand) {
      changed(operand);
      return operand;
    };
    target_stream const where = target();
    routing_plan const& plan = routing_.plan;
    call("dequantize out", [&] { dequantize({.q = plain(rows_), .out = with(y_)}, where); });
    call("quantize values", [&] {
      quantize({.x = x_, .layout = granularity::row(), .values = with(codes_), .scales = scales_},
               where);
    });
    call("quantize scales", [&] {
      quantize({.x = x_, .layout = granularity::row(), .values = codes_, .scales = with(scales_)},
               where);
    });
    call("gather rows", [&] { gather({.x = x_, .plan = plan, .rows = with(rows_)}, where); });
    call("combine y",
         [&] { combine({.rows = plain(rows_), .plan = plan, .y = with(token_out_)}, where); });
    call("activate out",
         [&] { activate({.activation = {}, .gate = rows_, .up = rows_, .out = with(y_)}, where); });
    call("activate_backward d_up", [&] {
      activate_backward({.activation = {},
                         .gate = rows_,
                         .up = rows_,
                         .d_out = rows_,
                         .d_gate = y_,
                         .d_up = with(more_)},
                        where);
    });
    call("grouped_gemm y", [&] {
      grouped_gemm({.x = plain(rows_),
                    .weights = weight_stack::single(plain(weights_)),
                    .expert_begin = plan.expert_begin,
                    .y = with(y_)},
                   where);
    });
    call("grouped_gemm_wgrad d_weights", [&] {
      grouped_gemm_wgrad({.dy = rows_,
                          .x = y_,
                          .expert_begin = plan.expert_begin,
                          .d_weights = {with(d_weights_), {}}},
                         where);
    });
    call("slot_weight_gradient d_weights", [&] {
      slot_weight_gradient(
          {.left = rows_, .right = y_, .plan = plan, .d_weights = with(slot_gradient_)}, where);
    });
    call("route weights", [&] {
      route({.logits = x_, .expert_ids = ids_, .weights = with(slot_gradient_)}, where);
    });
    call("route_backward d_logits", [&] {
      route_backward({.logits = x_,
                      .expert_ids = routing_.ids,
                      .d_weights = slot_gradient_,
                      .d_logits = with(token_out_)},
                     where);
    });
    if (!inputs) return;
    call("gather x", [&] { gather({.x = with(x_), .plan = plan, .rows = rows_}, where); });
    call("combine rows",
         [&] { combine({.rows = plain(with(rows_)), .plan = plan, .y = token_out_}, where); });
    call("grouped_gemm weights", [&] {
      grouped_gemm({.x = plain(rows_),
                    .weights = weight_stack::single(plain(with(weights_))),
                    .expert_begin = plan.expert_begin,
                    .y = y_},
                   where);
    });
    call("slot_to_row of plan", [&] {
      routing_plan changed_plan = plan;
      changed(changed_plan.slot_to_row);
      combine({.rows = plain(rows_), .plan = changed_plan, .y = token_out_}, where);
    });
  }

 private:
  static constexpr index_t tokens = 3, top_k = 2, slots = 6, experts = 4, width = 4;

  static quantized_view plain(tensor_view const& values) { return quantized_view::plain(values); }

  test_plan routing_ =
      make_plan({.tokens = tokens, .top_k = top_k, .experts = experts, .ids = {0, 1, 2, -1, 3, 3}});
  test_tensor x_ = integers(dtype::f32, {tokens, width});
  test_tensor rows_ = integers(dtype::f32, {slots, width});
  test_tensor y_ = integers(dtype::f32, {slots, width});
  test_tensor more_ = integers(dtype::f32, {slots, width});
  test_tensor weights_ = integers(dtype::f32, {experts, width, width});
  test_tensor d_weights_ = integers(dtype::f32, {experts, width, width});
  test_tensor token_out_ = integers(dtype::f32, {tokens, width});
  test_tensor slot_gradient_ = integers(dtype::f32, {tokens, top_k});
  test_tensor ids_ = integers(dtype::int64, {tokens, top_k});
  test_tensor codes_ = test_tensor(dtype::e4m3, {tokens, width});
  test_tensor scales_ = test_tensor(dtype::f32, {tokens, 1});
};

TEST(regression, small_calls_are_legal) {
  small_calls().each([](tensor_view&) {}, true,
                     [](std::string const& name, auto const& make) {
                       SCOPED_TRACE(name);
                       EXPECT_NO_THROW(make());
                     });
}

/// Two rows of an output in the same place: who writes last would decide.
TEST(regression, self_overlap_not_checked) {
  small_calls().each([](tensor_view& operand) { operand.stride[0] = 0; }, false,
                     [](std::string const& name, auto const& make) {
                       SCOPED_TRACE(name);
                       EXPECT_MOE64_ERROR(make(), errc::invalid_argument, "share memory");
                     });
}

TEST(regression, null_data_not_checked) {
  small_calls().each([](tensor_view& operand) { operand.data = nullptr; }, true,
                     [](std::string const& name, auto const& make) {
                       SCOPED_TRACE(name);
                       EXPECT_MOE64_ERROR(make(), errc::invalid_argument, "data is null");
                     });
}

TEST(regression, negative_strides_not_checked) {
  small_calls().each([](tensor_view& operand) { operand.stride[0] = -1; }, false,
                     [](std::string const& name, auto const& make) {
                       SCOPED_TRACE(name);
                       EXPECT_MOE64_ERROR(make(), errc::invalid_argument, "negative");
                     });
}

TEST(regression, device_not_checked) {
  small_calls().each([](tensor_view& operand) { operand.device = device::cuda(0); }, true,
                     [](std::string const& name, auto const& make) {
                       SCOPED_TRACE(name);
                       EXPECT_MOE64_ERROR(make(), errc::device_mismatch, "cuda:0");
                     });
}

}  // namespace
}  // namespace moe64::test
