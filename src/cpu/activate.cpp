#include "cpu/quantize/rows.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"
#include "cpu/simd/widths.hpp"

#include <algorithm>
#include <cmath>

namespace moe64::cpu {

MOE64_DECLARE_WIDTHS(activate_args, activate_simd)
MOE64_DECLARE_WIDTHS(activate_backward_args, activate_backward_simd)

namespace {

constexpr float inverse_sqrt_2 = 0.70710678118654752F;
constexpr float inverse_sqrt_2pi = 0.39894228040143268F;
constexpr float gelu_tanh_slope = 0.79788456080286536F;  // sqrt(2 / pi)
constexpr float gelu_tanh_cubic = 0.044715F;

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }
// erfc, not 1 + erf: far left of zero the sum would keep no digits.
float normal_cdf(float x) { return 0.5F * std::erfc(-x * inverse_sqrt_2); }

/// A function of one number and its derivative.
struct point {
  float value, slope;
};

point silu(float x) {
  float const s = sigmoid(x);
  return {x * s, s * (1.0F + x * (1.0F - s))};
}
point gelu(float x) {
  float const cdf = normal_cdf(x);
  return {x * cdf, cdf + x * inverse_sqrt_2pi * std::exp(-0.5F * x * x)};
}
point gelu_tanh(float x) {
  // (1 + tanh(u)) / 2 = sigmoid(2 u), which keeps its digits far left of zero.
  float const s = sigmoid(2.0F * gelu_tanh_slope * (x + gelu_tanh_cubic * x * x * x));
  float const inner = gelu_tanh_slope * (1.0F + 3.0F * gelu_tanh_cubic * x * x);
  // Far out `inner` overflows; there the curve is a line and bends no more.
  float const bend = s * (1.0F - s);
  return {x * s, s + (bend == 0.0F ? 0.0F : 2.0F * x * bend * inner)};
}
/// x * sigmoid(alpha * x)
point swish(float x, float alpha) {
  float const s = sigmoid(alpha * x);
  return {x * s, s * (1.0F + alpha * x * (1.0F - s))};
}
point relu2(float x) {
  // Written so that NaN passes: it is neither positive nor a reason for zero.
  float const positive = x < 0.0F ? 0.0F : x;
  return {positive * positive, 2.0F * positive};
}

float clamp_above(float x, float limit) { return x > limit ? limit : x; }
float clamp_both(float x, float limit) { return x > limit ? limit : (x < -limit ? -limit : x); }

/// out = first(gate) * second(up), with the derivatives of both factors; second is 1 when not
/// gated.
struct factors {
  point first, second;
};

factors factors_of(activation_spec const& spec, float gate, float up) {
  point const linear = {up, 1.0F};
  switch (spec.kind) {
    case activation::silu_glu:
      return {silu(gate), linear};
    case activation::gelu_glu:
      return {gelu(gate), linear};
    case activation::gelu_tanh_glu:
      return {gelu_tanh(gate), linear};
    case activation::gptoss_glu:
    case activation::clamped_silu_glu: {
      bool const gptoss = spec.kind == activation::gptoss_glu;
      point first = swish(clamp_above(gate, spec.limit), gptoss ? spec.alpha : 1.0F);
      if (gate > spec.limit) first.slope = 0.0F;
      float const bounded = clamp_both(up, spec.limit);
      bool const inside = !(up > spec.limit || up < -spec.limit);
      return {first, {gptoss ? bounded + 1.0F : bounded, inside ? 1.0F : 0.0F}};
    }
    case activation::step_glu: {
      point first = silu(gate);
      if (first.value > spec.limit) first = {spec.limit, 0.0F};
      bool const inside = !(up > spec.limit || up < -spec.limit);
      return {first, {clamp_both(up, spec.limit), inside ? 1.0F : 0.0F}};
    }
    case activation::silu:
      return {silu(gate), {1.0F, 0.0F}};
    case activation::gelu:
      return {gelu(gate), {1.0F, 0.0F}};
    case activation::relu2:
      return {relu2(gate), {1.0F, 0.0F}};
  }
  return {};
}

/// visit(row, col, count) over runs of [rows, inter] in parallel.
template <class Visit>
void for_each_run(stream where, index_t rows, index_t inter, Visit const& visit) {
  parallel_ranges(where, rows, inter * index_t{8}, [&](index_t begin, index_t end) {
    for (index_t row = begin; row < end; ++row) {
      for (index_t col = 0; col < inter; col += run_length) {
        visit(row, col, std::min(run_length, inter - col));
      }
    }
  });
}

/// out[i] = activation of columns col + i of a row, before it is rounded.
void activate_run(activate_args const& args, index_t row, index_t col, index_t count, float* out) {
  bool const gated = is_gated(args.activation.kind);
  float up[run_length] = {};
  load_row(row_of(args.gate, row), col, count, out);
  if (gated) load_row(row_of(args.up, row), col, count, up);
  for (index_t i = 0; i < count; ++i) {
    factors const f = factors_of(args.activation, out[i], up[i]);
    out[i] = f.first.value * f.second.value;
  }
}

void activate_reference(activate_args const& args, stream where) {
  index_t const rows = count_rows("activate", args.live_rows, args.gate.extent[0]);
  if (args.quantized.kind != scale_kind::none) {
    row_codes const to = {args.out, args.scales, args.quantized};
    parallel_for(where, rows, [&](index_t row) {
      quantize_row(to, row, [&](index_t col, index_t count, float* run) {
        activate_run(args, row, col, count, run);
        round_row(args.gate.type, count, run);
      });
    });
    return;
  }
  for_each_run(where, rows, args.gate.extent[1], [&](index_t row, index_t col, index_t count) {
    float run[run_length];
    activate_run(args, row, col, count, run);
    store_row(row_of(args.out, row), col, count, run);
  });
}

void activate_backward_reference(activate_backward_args const& args, stream where) {
  index_t const rows = count_rows("activate_backward", args.live_rows, args.gate.extent[0]);
  bool const gated = is_gated(args.activation.kind);
  routing_plan const& plan = args.weighted_by;
  bool const weighted = plan.present();
  for_each_run(where, rows, args.gate.extent[1], [&](index_t row, index_t col, index_t count) {
    float gate[run_length];
    float up[run_length] = {};
    float d_out[run_length];
    load_row(row_of(args.gate, row), col, count, gate);
    if (gated) load_row(row_of(args.up, row), col, count, up);
    load_row(row_of(args.d_out, row), col, count, d_out);
    float weight = 1.0F;
    if (weighted) {
      weight = as<float, 1>(plan.slot_weight)(as<std::int64_t, 1>(plan.row_to_slot)(row));
    }
    for (index_t i = 0; i < count; ++i) {
      factors const f = factors_of(args.activation, gate[i], up[i]);
      float const d = weighted ? weight * d_out[i] : d_out[i];
      gate[i] = d * f.second.value * f.first.slope;
      up[i] = d * f.first.value * f.second.slope;
    }
    store_row(row_of(args.d_gate, row), col, count, gate);
    if (gated) store_row(row_of(args.d_up, row), col, count, up);
  });
}

constexpr implementation<activate_args> activators[] = {
    MOE64_WIDTHS(activate_args, activate_simd, any_call<activate_args>),
    {"reference", any_call<activate_args>, activate_reference},
};
constexpr implementation<activate_backward_args> backward_activators[] = {
    MOE64_WIDTHS(activate_backward_args, activate_backward_simd, any_call<activate_backward_args>),
    {"reference", any_call<activate_backward_args>, activate_backward_reference},
};

}  // namespace

implementation_list<activate_args> activate_list() { return activators; }
implementation_list<activate_backward_args> activate_backward_list() { return backward_activators; }

}  // namespace moe64::cpu
