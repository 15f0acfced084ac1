// The activations of vectors of numbers, with their slopes. Included once per target, after
// simd.hpp.

#if defined(MOE64_CPU_ACTIVATION_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_ACTIVATION_SIMD_HPP
#undef MOE64_CPU_ACTIVATION_SIMD_HPP
#else
#define MOE64_CPU_ACTIVATION_SIMD_HPP
#endif

#include "cpu/simd/math.hpp"
#include "moe64/ops.hpp"

#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// A function of one number and its derivative.
struct point {
  f32_vector value, slope;
};

/// x * sigmoid(alpha * x)
HWY_INLINE point swish(f32_vector x, f32_vector alpha) {
  f32_vector const scaled = hn::Mul(alpha, x);
  sigmoid_pair const s = sigmoid_of(scaled);
  return {hn::Mul(x, s.value),
          hn::Mul(s.value, fused_multiply_add(scaled, s.rest, constant(1.0F)))};
}

HWY_INLINE point gelu(f32_vector x) {
  constexpr float inverse_sqrt_2pi = 0.39894228040143268F;
  normal_pair const normal = normal_of(x);
  f32_vector const density = hn::Mul(normal.bell, constant(inverse_sqrt_2pi));
  return {hn::Mul(x, normal.cdf), fused_multiply_add(x, density, normal.cdf)};
}

HWY_INLINE point gelu_tanh(f32_vector x) {
  constexpr float slope = 0.79788456080286536F;  // sqrt(2 / pi)
  constexpr float cubic = 0.044715F;
  f32_vector const square = hn::Mul(x, x);
  // (1 + tanh(u)) / 2 = sigmoid(2 u), which keeps its digits far left of zero.
  f32_vector const inside = hn::Mul(hn::Mul(constant(2.0F * slope), x),
                                    fused_multiply_add(constant(cubic), square, constant(1.0F)));
  sigmoid_pair const s = sigmoid_of(inside);
  f32_vector const steepness = hn::Mul(
      constant(2.0F * slope), fused_multiply_add(constant(3.0F * cubic), square, constant(1.0F)));
  // Far out the steepness overflows; there the curve is a line and bends no more.
  f32_vector const bend = hn::Mul(s.value, s.rest);
  f32_vector const curved = hn::Mul(hn::Mul(x, bend), steepness);
  auto const is_line = hn::Eq(bend, constant(0.0F));
  return {hn::Mul(x, s.value), hn::Add(s.value, hn::IfThenZeroElse(is_line, curved))};
}

HWY_INLINE point relu2(f32_vector x) {
  // Written so that NaN passes: it is neither positive nor a reason for zero.
  f32_vector const positive = hn::IfThenZeroElse(hn::Lt(x, constant(0.0F)), x);
  return {hn::Mul(positive, positive), hn::Mul(constant(2.0F), positive)};
}

/// out = first(gate) * second(up), with the derivatives of both factors; second is 1 when not
/// gated.
struct factors {
  point first, second;
};

/// clamp(up, -limit, limit)
HWY_INLINE point bounded(f32_vector up, f32_vector limit) {
  auto const above = hn::Gt(up, limit);
  auto const below = hn::Lt(up, hn::Neg(limit));
  return {hn::IfThenElse(above, limit, hn::IfThenElse(below, hn::Neg(limit), up)),
          hn::IfThenZeroElse(hn::Or(above, below), constant(1.0F))};
}

template <activation Kind>
HWY_INLINE factors factors_of(activation_spec const& spec, f32_vector gate, f32_vector up) {
  f32_vector const one = constant(1.0F);
  if constexpr (Kind == activation::gptoss_glu || Kind == activation::clamped_silu_glu) {
    constexpr bool gptoss = Kind == activation::gptoss_glu;
    f32_vector const limit = constant(spec.limit);
    auto const gate_above = hn::Gt(gate, limit);
    point first =
        swish(hn::IfThenElse(gate_above, limit, gate), constant(gptoss ? spec.alpha : 1.0F));
    first.slope = hn::IfThenZeroElse(gate_above, first.slope);
    point second = bounded(up, limit);
    if (gptoss) second.value = hn::Add(second.value, one);
    return {first, second};
  } else if constexpr (Kind == activation::step_glu) {
    f32_vector const limit = constant(spec.limit);
    point first = swish(gate, one);
    auto const above = hn::Gt(first.value, limit);
    first = {hn::IfThenElse(above, limit, first.value), hn::IfThenZeroElse(above, first.slope)};
    return {first, bounded(up, limit)};
  } else {
    point const second = {is_gated(Kind) ? up : one, is_gated(Kind) ? one : constant(0.0F)};
    switch (Kind) {
      case activation::silu_glu:
      case activation::silu:
        return {swish(gate, one), second};
      case activation::gelu_glu:
      case activation::gelu:
        return {gelu(gate), second};
      case activation::gelu_tanh_glu:
        return {gelu_tanh(gate), second};
      default:
        return {relu2(gate), second};
    }
  }
}

/// visitor(constant) with the kind as a constant.
template <class Visitor>
void visit_kind(activation kind, Visitor const& visitor) {
  using enum activation;
  switch (kind) {
    case silu_glu:
      return visitor(std::integral_constant<activation, silu_glu>{});
    case gelu_glu:
      return visitor(std::integral_constant<activation, gelu_glu>{});
    case gelu_tanh_glu:
      return visitor(std::integral_constant<activation, gelu_tanh_glu>{});
    case gptoss_glu:
      return visitor(std::integral_constant<activation, gptoss_glu>{});
    case clamped_silu_glu:
      return visitor(std::integral_constant<activation, clamped_silu_glu>{});
    case silu:
      return visitor(std::integral_constant<activation, silu>{});
    case gelu:
      return visitor(std::integral_constant<activation, gelu>{});
    case relu2:
      return visitor(std::integral_constant<activation, relu2>{});
    case step_glu:
      return visitor(std::integral_constant<activation, step_glu>{});
  }
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
