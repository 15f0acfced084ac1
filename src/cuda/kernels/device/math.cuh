#pragma once

#include <bit>
#include <cstdint>

/// exp, the logistic function and the normal distribution, bit for bit as the vectors of the CPU
/// backend compute them: the same additions, products and fused multiply-adds in the same order.
/// All 32 lanes of a warp must call them together.
namespace moe64::cuda {

/// The larger of both, NaN where x is; the smaller of both likewise.
__device__ inline float at_least(float x, float low) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(low));
  return result;
}
__device__ inline float at_most(float x, float high) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(high));
  return result;
}

/// 1 / x rounded to nearest, for x between 2^-100 and 2^100: the approximation of the hardware and
/// one step of Newton, which is what the compiler emits behind a check of the range.
__device__ inline float reciprocal(float x) {
  float guess;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(x));
  return __fmaf_rn(guess, __fmaf_rn(-x, guess, 1.0F), guess);
}

/// x / y rounded to nearest, where neither they nor the quotient come near the ends of f32; the
/// remainder is exact and corrects the first guess (Markstein).
__device__ inline float quotient(float x, float y, float reciprocal_of_y) {
  float const guess = x * reciprocal_of_y;
  return __fmaf_rn(__fmaf_rn(-guess, y, x), reciprocal_of_y, guess);
}

/// The bits of 2^(i / 16) without those of i where exp_of_negative() adds them together with the
/// exponent: one addition for both.
struct sixteenth_power_bits {
  std::uint32_t bits[16];
};
[[nodiscard]] constexpr sixteenth_power_bits make_sixteenth_powers() {
  constexpr float powers[16] = {0x1.000000p+0F, 0x1.0b5586p+0F, 0x1.172b84p+0F, 0x1.2387a6p+0F,
                                0x1.306fe0p+0F, 0x1.3dea64p+0F, 0x1.4bfdaep+0F, 0x1.5ab07ep+0F,
                                0x1.6a09e6p+0F, 0x1.7a1148p+0F, 0x1.8ace54p+0F, 0x1.9c4918p+0F,
                                0x1.ae89fap+0F, 0x1.c199bep+0F, 0x1.d5818ep+0F, 0x1.ea4afap+0F};
  sixteenth_power_bits result{};
  for (std::uint32_t i = 0; i < 16; ++i) {
    result.bits[i] = std::bit_cast<std::uint32_t>(powers[i]) - (i << 19);
  }
  return result;
}
__constant__ constexpr sixteenth_power_bits sixteenth_powers_of_2 = make_sixteenth_powers();

/// The same, spread over a warp: lane i has entry i % 16.
struct sixteenth_powers {
  std::uint32_t mine;

  __device__ static sixteenth_powers load() {
    return {sixteenth_powers_of_2.bits[threadIdx.x % 16]};
  }
  /// Entry i % 16; a shuffle takes the lower 5 bits of i only.
  __device__ std::uint32_t operator[](std::uint32_t i) const {
    return __shfl_sync(0xffffffffU, mine, static_cast<int>(i));  // narrow-ok: only its bits count
  }
};

/// exp is normal down to here, by a margin, so its exponent can be added as bits.
inline constexpr float near_reach = 86.0F;

/// exp(x) for x <= 0, to 1 unit in the last place, subnormal results included. With `Near` x is at
/// least -near_reach or NaN: the same bits by fewer instructions.
template <bool Near>
__device__ inline float exp_of_negative(float x, sixteenth_powers const& powers) {
  constexpr float shifter = 0x1.8p19F;
  if (!Near) x = at_least(x, -104.0F);  // below this everything rounds to zero
  // x = n ln(2) + r with n in sixteenths; `shifted` has the sixteenths in its lowest bits.
  float const shifted = __fmaf_rn(x, 0x1.715476p+0F, shifter);
  float const n = shifted - shifter;
  float r = __fmaf_rn(n, -0x1.62e430p-1F, x);
  r = __fmaf_rn(n, 0x1.05c610p-29F, r);
  float const q = __fmaf_rn(0x1.5556e8p-3F, r, 0x1.000220p-1F);
  float const tail = __fmaf_rn(r * r, q, r);
  std::uint32_t const place = __float_as_uint(shifted);
  std::uint32_t const power = powers[place];
  if constexpr (Near) {
    float const scaled = __uint_as_float(power + (place << 19));
    return __fmaf_rn(scaled, tail, scaled);
  } else {
    float const fraction = __uint_as_float(power + (place % 16 << 19));
    int const exponent = static_cast<int>(place << 19 & 0xff800000U);  // narrow-ok: floor(n) << 23
    // Times 2^floor(n), in two steps of which only the second can round: n may be below -126.
    int const first = max(exponent, -100 * (1 << 23));
    constexpr int one = 127 << 23;
    float const scaled = __fmaf_rn(fraction, tail, fraction) * __int_as_float(first + one);
    return scaled * __int_as_float(exponent - first + one);
  }
}

/// 1 / (1 + exp(-x)), and 1 minus it.
struct sigmoid_pair {
  float value, complement;
};
template <bool Near>
__device__ inline sigmoid_pair sigmoid_of(float x, sixteenth_powers const& powers) {
  float const e = exp_of_negative<Near>(-fabsf(x), powers);
  float const upper = reciprocal(1.0F + e);
  float const lower = e * upper;
  bool const is_negative = x < 0.0F;
  return {is_negative ? lower : upper, is_negative ? upper : lower};
}

/// The standard normal distribution function, and exp(-x^2 / 2). With `Near` x has at most 12
/// significant bits, so that its square is exact.
struct normal_pair {
  float cdf, bell;
};
template <bool Near>
__device__ inline normal_pair normal_of(float x, sixteenth_powers const& powers) {
  float const t = Near ? fabsf(x) : at_most(fabsf(x), 15.0F);
  float const square = t * t;
  float bell = exp_of_negative<Near>(square * -0.5F, powers);
  if (!Near) bell = __fmaf_rn(bell, __fmaf_rn(t, t, -square) * -0.5F, bell);
  float const u = quotient(t - 4.0F, t + 4.0F, reciprocal(t + 4.0F));
  constexpr float coefficients[] = {
      -0x1.13a720p-14F, 0x1.6a67ccp-11F, -0x1.3b180cp-12F, -0x1.47d860p-8F, 0x1.25ebecp-6F,
      -0x1.07c388p-5F,  0x1.d49536p-6F,  0x1.cabd6ap-7F,   -0x1.8c18f0p-4F, 0x1.e361eap-2F};
  float p = -0x1.361860p-14F;
#pragma unroll
  for (float const coefficient : coefficients) p = __fmaf_rn(p, u, coefficient);
  float const tail = bell * quotient(p, 1.0F + t, reciprocal(1.0F + t));
  return {x < 0.0F ? tail : 1.0F - tail, bell};
}

}  // namespace moe64::cuda
