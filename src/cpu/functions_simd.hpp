// exp, the logistic function and the normal distribution of f32 lanes. Only additions, products,
// fused multiply-adds, divisions and comparisons: the bits are the same at every width. NaN stays
// NaN. Included once per target, after simd.hpp.

#if defined(MOE64_CPU_FUNCTIONS_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_FUNCTIONS_SIMD_HPP
#undef MOE64_CPU_FUNCTIONS_SIMD_HPP
#else
#define MOE64_CPU_FUNCTIONS_SIMD_HPP
#endif

#include "cpu/lanes_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

HWY_INLINE f32_vector constant(float value) { return hn::Set(f32_tag{}, value); }

/// The larger of both, x where it is NaN; the smaller of both likewise.
HWY_INLINE f32_vector at_least(f32_vector x, float low) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Lt(x, constant(low)), constant(low), x);
#else
  return hn::Max(constant(low), x);  // of two operands one of which is NaN, x86 takes the second
#endif
}
HWY_INLINE f32_vector at_most(f32_vector x, float high) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Gt(x, constant(high)), constant(high), x);
#else
  return hn::Min(constant(high), x);
#endif
}

/// x * 2^n for x in [0.5, 2] and whole n in [-150, 0], rounded once; shifted is n + 1.5 * 2^23.
HWY_INLINE f32_vector times_power_of_2(f32_vector x, f32_vector n, f32_vector shifted) {
#if HWY_TARGET == HWY_AVX3
  static_cast<void>(shifted);
  return f32_vector{_mm512_scalef_ps(x.raw, n.raw)};
#else
  static_cast<void>(n);
  // In two steps, of which only the second can round: n may be below -126.
  i32_tag const integers;
  auto const whole =
      hn::Sub(hn::BitCast(integers, shifted), hn::BitCast(integers, constant(0x1.8p23F)));
  auto const half = hn::ShiftRight<1>(whole);
  auto const bias = hn::Set(integers, 127);
  auto const first = hn::ShiftLeft<23>(hn::Add(half, bias));
  auto const second = hn::ShiftLeft<23>(hn::Add(hn::Sub(whole, half), bias));
  f32_tag const floats;
  return hn::Mul(hn::Mul(x, hn::BitCast(floats, first)), hn::BitCast(floats, second));
#endif
}

/// The polynomial with these coefficients, the highest power first.
template <class... Coefficients>
HWY_INLINE f32_vector polynomial(f32_vector x, float highest, Coefficients... rest) {
  f32_vector sum = constant(highest);
  ((sum = fused_multiply_add(sum, x, constant(rest))), ...);
  return sum;
}

/// exp(x) for x <= 0, to 1 unit in the last place, subnormal results included.
HWY_INLINE f32_vector exp_of_negative(f32_vector x) {
  x = at_least(x, -104.0F);  // below this everything rounds to zero
  // x = n ln(2) + r; the sum with 1.5 * 2^23 has n in its lowest bits.
  f32_vector const shifter = constant(0x1.8p23F);
  f32_vector const shifted = fused_multiply_add(x, constant(0x1.715476p+0F), shifter);
  f32_vector const n = hn::Sub(shifted, shifter);
  f32_vector r = fused_multiply_add(n, constant(-0x1.62e430p-1F), x);
  r = fused_multiply_add(n, constant(0x1.05c610p-29F), r);
  // exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2) / 2, q fitted to 2^-26.
  f32_vector const q = polynomial(r, 0x1.6d11fep-10F, 0x1.120c62p-7F, 0x1.555518p-5F,
                                  0x1.5554dcp-3F, 0x1.000000p-1F);
  f32_vector const tail = fused_multiply_add(hn::Mul(r, r), q, r);
  f32_vector const power_of_r = hn::Add(constant(1.0F), tail);
  return times_power_of_2(power_of_r, n, shifted);
}

/// 1 / (1 + exp(-x)) and what it lacks to 1, both to a few units in the last place even where they
/// are small.
struct sigmoid_pair {
  f32_vector value, rest;
};
HWY_INLINE sigmoid_pair sigmoid_of(f32_vector x) {
  f32_vector const e = exp_of_negative(hn::Neg(hn::Abs(x)));
  f32_vector const upper = hn::Div(constant(1.0F), hn::Add(constant(1.0F), e));
  f32_vector const lower = hn::Mul(e, upper);
  auto const is_negative = hn::Lt(x, constant(0.0F));
  return {hn::IfThenElse(is_negative, lower, upper), hn::IfThenElse(is_negative, upper, lower)};
}

/// The standard normal distribution function, and exp(-x^2 / 2).
struct normal_pair {
  f32_vector cdf, bell;
};
HWY_INLINE normal_pair normal_of(f32_vector x) {
  // At 15 the bell has been zero for a while.
  f32_vector const t = at_most(hn::Abs(x), 15.0F);
  f32_vector const square = hn::Mul(t, t);
  f32_vector const lost = fused_multiply_add(t, t, hn::Neg(square));
  f32_vector const rounded = exp_of_negative(hn::Mul(square, constant(-0.5F)));
  f32_vector const bell = fused_multiply_add(rounded, hn::Mul(lost, constant(-0.5F)), rounded);
  // cdf(-t) = bell(t) p(u) / (1 + t) with u = (t - 4) / (t + 4), p fitted to 2^-25 up to t = 14.5.
  f32_vector const u = hn::Div(hn::Sub(t, constant(4.0F)), hn::Add(t, constant(4.0F)));
  f32_vector const p =
      polynomial(u, -0x1.361860p-14F, -0x1.13a720p-14F, 0x1.6a67ccp-11F, -0x1.3b180cp-12F,
                 -0x1.47d860p-8F, 0x1.25ebecp-6F, -0x1.07c388p-5F, 0x1.d49536p-6F, 0x1.cabd6ap-7F,
                 -0x1.8c18f0p-4F, 0x1.e361eap-2F);
  f32_vector const tail = hn::Mul(bell, hn::Div(p, hn::Add(constant(1.0F), t)));
  f32_vector const cdf =
      hn::IfThenElse(hn::Lt(x, constant(0.0F)), tail, hn::Sub(constant(1.0F), tail));
  return {cdf, bell};
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
