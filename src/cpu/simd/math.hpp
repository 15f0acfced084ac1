// exp, the logistic function and the normal distribution of f32 lanes. Only additions, products,
// fused multiply-adds, divisions and comparisons: the bits are the same at every width. NaN stays
// NaN. Included once per target, after simd.hpp.

#if defined(MOE64_CPU_FUNCTIONS_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_FUNCTIONS_SIMD_HPP
#undef MOE64_CPU_FUNCTIONS_SIMD_HPP
#else
#define MOE64_CPU_FUNCTIONS_SIMD_HPP
#endif

#include "cpu/simd/lanes.hpp"

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

/// 2^(i / 16)
inline constexpr float sixteenth_powers_of_2[16] = {
    0x1.000000p+0F, 0x1.0b5586p+0F, 0x1.172b84p+0F, 0x1.2387a6p+0F, 0x1.306fe0p+0F, 0x1.3dea64p+0F,
    0x1.4bfdaep+0F, 0x1.5ab07ep+0F, 0x1.6a09e6p+0F, 0x1.7a1148p+0F, 0x1.8ace54p+0F, 0x1.9c4918p+0F,
    0x1.ae89fap+0F, 0x1.c199bep+0F, 0x1.d5818ep+0F, 0x1.ea4afap+0F};

/// A number n in [-150, 0] in steps of 1/16, as two factors of 2^n: a power whose exponent is whole
/// and one of the table. `shifted` is n + 1.5 * 2^19, which has the sixteenths in its lowest bits.
struct split_power {
  f32_vector n, shifted;

  /// 2^(n - floor(n)); anything where n is NaN.
  [[nodiscard]] HWY_INLINE f32_vector fraction() const {
#if HWY_TARGET == HWY_AVX3
    auto const table = hn::LoadU(f32_tag{}, sixteenth_powers_of_2);
    return f32_vector{_mm512_permutexvar_ps(_mm512_castps_si512(shifted.raw), table.raw)};
#else
    i32_tag const integers;
    auto const index = hn::And(hn::BitCast(integers, shifted), hn::Set(integers, 15));
#if HWY_TARGET == HWY_SCALAR
    return constant(sixteenth_powers_of_2[hn::GetLane(index)]);
#else
    f32_tag const floats;
    static_assert(vector_length == 8);
    auto const lanes = hn::IndicesFromVec(floats, hn::And(index, hn::Set(integers, 7)));
    auto const lower = hn::TableLookupLanes(hn::LoadU(floats, sixteenth_powers_of_2), lanes);
    auto const upper = hn::TableLookupLanes(hn::LoadU(floats, sixteenth_powers_of_2 + 8), lanes);
    auto const is_upper = hn::RebindMask(floats, hn::Gt(index, hn::Set(integers, 7)));
    return hn::IfThenElse(is_upper, upper, lower);
#endif
#endif
  }

  /// x * 2^floor(n) for x in [0.5, 4], rounded once.
  [[nodiscard]] HWY_INLINE f32_vector scale(f32_vector x) const {
#if HWY_TARGET == HWY_AVX3
    return f32_vector{_mm512_scalef_ps(x.raw, n.raw)};
#else
    // In two steps, of which only the second can round: n may be below -126.
    i32_tag const integers;
    auto const sixteenths =
        hn::Sub(hn::BitCast(integers, shifted), hn::BitCast(integers, constant(0x1.8p19F)));
    auto const whole = hn::ShiftRight<4>(sixteenths);
    auto const half = hn::ShiftRight<1>(whole);
    auto const bias = hn::Set(integers, 127);
    auto const first = hn::ShiftLeft<23>(hn::Add(half, bias));
    auto const second = hn::ShiftLeft<23>(hn::Add(hn::Sub(whole, half), bias));
    f32_tag const floats;
    return hn::Mul(hn::Mul(x, hn::BitCast(floats, first)), hn::BitCast(floats, second));
#endif
  }
};

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
  // x = n ln(2) + r with n in sixteenths.
  f32_vector const shifter = constant(0x1.8p19F);
  f32_vector const shifted = fused_multiply_add(x, constant(0x1.715476p+0F), shifter);
  f32_vector const n = hn::Sub(shifted, shifter);
  f32_vector r = fused_multiply_add(n, constant(-0x1.62e430p-1F), x);
  r = fused_multiply_add(n, constant(0x1.05c610p-29F), r);
  // exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2) / 32, q fitted to 2^-29.
  f32_vector const q = polynomial(r, 0x1.5556e8p-3F, 0x1.000220p-1F);
  f32_vector const tail = fused_multiply_add(hn::Mul(r, r), q, r);
  split_power const power = {n, shifted};
  f32_vector const fraction = power.fraction();
  return power.scale(fused_multiply_add(fraction, tail, fraction));
}

/// 1 / (1 + exp(-x)) and what it lacks to 1, both to a few units in the last place even where they
/// are small.
struct sigmoid_pair {
  f32_vector value, rest;
};
HWY_INLINE sigmoid_pair sigmoid_of(f32_vector x) {
  f32_vector const e = exp_of_negative(hn::Or(x, constant(-0.0F)));
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
