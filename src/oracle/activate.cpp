#include "moe64/error.hpp"
#include "oracle/oracle.hpp"

#include <cmath>
#include <numbers>

namespace moe64::oracle {
namespace {

/// A function and its slope at one point.
struct sample {
  double value, slope;
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// x * sigmoid(alpha * x)
sample swish(double x, double alpha) {
  double const s = sigmoid(alpha * x);
  return {x * s, s + alpha * x * s * (1.0 - s)};
}

/// x times the standard normal distribution function
sample gelu(double x) {
  double const below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
  double const density = std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  return {x * below, below + x * density};
}

/// (1 + tanh z) / 2 is sigmoid(2 z), which keeps its digits where tanh is close to -1.
sample gelu_tanh(double x) {
  double const factor = 2.0 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  double const s = sigmoid(factor * (x + 0.044715 * x * x * x));
  return {x * s, s + x * s * (1.0 - s) * factor * (1.0 + 3.0 * 0.044715 * x * x)};
}

sample relu2(double x) { return x < 0.0 ? sample{0.0, 0.0} : sample{x * x, 2.0 * x}; }

/// out = left(gate) * right(up); right is 1 when not gated. Nothing flows back through a clamp that
/// was active.
struct factors {
  sample left, right;
  bool gate_clamped = false, up_clamped = false;
};

factors factors_of(activation_spec const& spec, double gate, double up) {
  switch (spec.kind) {
    case activation::silu_glu:
      return {swish(gate, 1.0), {up, 1.0}};
    case activation::gelu_glu:
      return {gelu(gate), {up, 1.0}};
    case activation::gelu_tanh_glu:
      return {gelu_tanh(gate), {up, 1.0}};
    case activation::gptoss_glu:
    case activation::clamped_silu_glu: {
      bool const gptoss = spec.kind == activation::gptoss_glu;
      double const limit = spec.limit;
      // Comparisons with NaN are false: it passes the clamps as itself.
      double const g = gate > limit ? limit : gate;
      double const u = up > limit ? limit : up < -limit ? -limit : up;
      return {swish(g, gptoss ? double{spec.alpha} : 1.0),
              {gptoss ? u + 1.0 : u, 1.0},
              gate > limit,
              up > limit || up < -limit};
    }
    case activation::step_glu: {
      double const limit = spec.limit;
      sample const left = swish(gate, 1.0);
      bool const clamped = left.value > limit;
      double const u = up > limit ? limit : up < -limit ? -limit : up;
      return {clamped ? sample{limit, 0.0} : left, {u, 1.0}, clamped, up > limit || up < -limit};
    }
    case activation::silu:
      return {swish(gate, 1.0), {1.0, 0.0}};
    case activation::gelu:
      return {gelu(gate), {1.0, 0.0}};
    case activation::relu2:
      return {relu2(gate), {1.0, 0.0}};
  }
  throw error(errc::invalid_argument, "[oracle activate] unknown activation");
}

}  // namespace

double activate(activation_spec const& spec, double gate, double up) {
  factors const f = factors_of(spec, gate, up);
  return f.left.value * f.right.value;
}

activation_gradient activate_backward(activation_spec const& spec, double gate, double up,
                                      double d_out) {
  factors const f = factors_of(spec, gate, up);
  bool const has_up = is_gated(spec.kind) && !f.up_clamped;
  return {f.gate_clamped ? 0.0 : d_out * f.left.slope * f.right.value,
          has_up ? d_out * f.left.value * f.right.slope : 0.0};
}

}  // namespace moe64::oracle
