#pragma once

#include "cuda/kernels/device/math.cuh"
#include "cuda/kernels/device/vec8.cuh"
#include "moe64/ops.hpp"

#include <type_traits>

/// The activations of gate and up and their derivatives, bit for bit as the SIMD code of the CPU
/// backend computes them. All 32 lanes of a warp must call them together.
namespace moe64::cuda {

/// The value of a function and its derivative.
struct point {
  float value, slope;
};

/// x * sigmoid(alpha * x)
template <bool Near>
__device__ inline point swish(float x, float alpha, sixteenth_powers const& powers) {
  float const scaled = alpha * x;
  sigmoid_pair const s = sigmoid_of<Near>(scaled, powers);
  return {x * s.value, s.value * __fmaf_rn(scaled, s.complement, 1.0F)};
}

template <bool Near>
__device__ inline point gelu(float x, sixteenth_powers const& powers) {
  constexpr float inverse_sqrt_2pi = 0.39894228040143268F;
  normal_pair const normal = normal_of<Near>(x, powers);
  return {x * normal.cdf, __fmaf_rn(x, normal.bell * inverse_sqrt_2pi, normal.cdf)};
}

template <bool Near>
__device__ inline point gelu_tanh(float x, sixteenth_powers const& powers) {
  constexpr float slope = 0.79788456080286536F;  // sqrt(2 / pi)
  constexpr float cubic = 0.044715F;
  float const square = x * x;
  // (1 + tanh(u)) / 2 = sigmoid(2 u), which keeps its digits far left of zero.
  sigmoid_pair const s =
      sigmoid_of<Near>(2.0F * slope * x * __fmaf_rn(cubic, square, 1.0F), powers);
  float const steepness = 2.0F * slope * __fmaf_rn(3.0F * cubic, square, 1.0F);
  // Far from zero the steepness overflows, where the curvature is 0.
  float const bend = s.value * s.complement;
  float const curved = x * bend * steepness;
  return {x * s.value, s.value + (bend == 0.0F ? 0.0F : curved)};
}

__device__ inline point relu2(float x) {
  // Written so that NaN stays NaN.
  float const positive = x < 0.0F ? 0.0F : x;
  return {positive * positive, 2.0F * positive};
}

/// out = first(gate) * second(up), with the derivatives of both factors; second is 1 when not
/// gated.
struct factors {
  point first, second;
};

/// `Bounded`: gate and up have been clamped already.
template <activation Kind, bool Near, bool Bounded = false>
__device__ inline factors factors_of(activation_spec const& spec, float gate, float up,
                                     sixteenth_powers const& powers) {
  if constexpr (Kind == activation::gptoss_glu || Kind == activation::clamped_silu_glu) {
    constexpr bool gptoss = Kind == activation::gptoss_glu;
    float const low = Bounded ? gate : at_most(gate, spec.limit);
    point first = swish<Near>(low, gptoss ? spec.alpha : 1.0F, powers);
    if (gate > spec.limit) first.slope = 0.0F;
    float const bounded = Bounded ? up : at_least(at_most(up, spec.limit), -spec.limit);
    return {first, {gptoss ? bounded + 1.0F : bounded, fabsf(up) > spec.limit ? 0.0F : 1.0F}};
  } else if constexpr (Kind == activation::step_glu) {
    point first = swish<Near>(gate, 1.0F, powers);
    if (first.value > spec.limit) first = {spec.limit, 0.0F};
    float const bounded = at_least(at_most(up, spec.limit), -spec.limit);
    return {first, {bounded, fabsf(up) > spec.limit ? 0.0F : 1.0F}};
  } else {
    constexpr bool gated = is_gated(Kind);
    point const second = {gated ? up : 1.0F, gated ? 1.0F : 0.0F};
    if constexpr (Kind == activation::silu_glu || Kind == activation::silu) {
      return {swish<Near>(gate, 1.0F, powers), second};
    } else if constexpr (Kind == activation::gelu_glu || Kind == activation::gelu) {
      return {gelu<Near>(gate, powers), second};
    } else if constexpr (Kind == activation::gelu_tanh_glu) {
      return {gelu_tanh<Near>(gate, powers), second};
    } else {
      return {relu2(gate), second};
    }
  }
}

/// activation(gate, up), not yet rounded.
template <activation Kind, bool Near = false, bool Bounded = false>
__device__ inline float activated(activation_spec const& spec, float gate, float up,
                                  sixteenth_powers const& powers) {
  factors const f = factors_of<Kind, Near, Bounded>(spec, gate, up, powers);
  return f.first.value * f.second.value;
}

/// Gradients of gate and up where that of the output is d.
struct gate_up_gradient {
  float gate, up;
};
template <activation Kind>
__device__ inline gate_up_gradient gradient_of(activation_spec const& spec, float gate, float up,
                                               float d, sixteenth_powers const& powers) {
  factors const f = factors_of<Kind, false>(spec, gate, up, powers);
  return {d * f.second.value * f.first.slope, d * f.first.value * f.second.slope};
}

/// Whether all exponentials are within near_reach for gates of at most this magnitude; false for
/// NaN.
template <activation Kind>
__device__ inline bool is_near(activation_spec const& spec, float largest) {
  if constexpr (Kind == activation::gptoss_glu) return largest * fabsf(spec.alpha) <= near_reach;
  if constexpr (Kind == activation::gelu_glu || Kind == activation::gelu) return largest <= 13.0F;
  if constexpr (Kind == activation::gelu_tanh_glu) return largest <= 9.5F;
  return largest <= near_reach;
}

/// Clamps gates and ups two at a time; false where it cannot: their type must represent the limit.
template <activation Kind, dtype Type, int Count>
__device__ inline bool bound_pairs(activation_spec const& spec, raw8<Type> (&gates)[Count],
                                   raw8<Type> (&ups)[Count]) {
  if constexpr (Kind == activation::gptoss_glu || Kind == activation::clamped_silu_glu) {
    std::uint32_t const limits = encode_half_pair<Type>(spec.limit, spec.limit);
    if (__uint_as_float(larger_half<Type>(limits)) != spec.limit) return false;
#pragma unroll
    for (int i = 0; i < 4 * Count; ++i) {
      std::uint32_t& gate = gates[i / 4].word[i % 4];
      std::uint32_t& up = ups[i / 4].word[i % 4];
      gate = at_most_halves<Type>(gate, limits);
      up = within_halves<Type>(up, limits);
    }
    return true;
  }
  return false;
}

/// Activations of `Count` vec8s, each rounded once, in place of the gates.
template <activation Kind, dtype Type, int Count>
__device__ inline void activate_vec8(activation_spec const& spec, raw8<Type> (&gates)[Count],
                                     raw8<Type> (&ups)[Count], sixteenth_powers const& powers) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4 * Count; ++i) {
    largest = larger_halves<Type>(largest, gates[i / 4].word[i % 4]);
  }
  bool const near = is_near<Kind>(spec, __uint_as_float(larger_half<Type>(largest)));
  auto const compute = [&](auto by_near, auto bounded) {
#pragma unroll
    for (int n = 0; n < Count; ++n) {
      float gate[8], up[8];
      decode8<Type>(gates[n], gate);
      decode8<Type>(ups[n], up);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        gate[i] = activated<Kind, by_near(), bounded()>(spec, gate[i], up[i], powers);
      }
      gates[n] = encode8<Type>(gate);
    }
  };
  // Uniform for a warp.
  if (!__all_sync(0xffffffffU, near)) {
    compute(std::false_type{}, std::false_type{});
  } else if (bound_pairs<Kind>(spec, gates, ups)) {
    compute(std::true_type{}, std::true_type{});
  } else {
    compute(std::true_type{}, std::false_type{});
  }
}

/// visitor(kind as a constant); on host and device.
template <class Visitor>
__host__ __device__ auto visit_kind(activation kind, Visitor const& visitor) {
  using enum activation;
  switch (kind) {
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
    default:
      return visitor(std::integral_constant<activation, silu_glu>{});
  }
}

}  // namespace moe64::cuda
