#include "cases/tolerance.hpp"

#include <algorithm>
#include <cmath>

namespace moe64::cases {
namespace {

// The error of one rounding to nearest is spread evenly over +-u/m for a mantissa m in [1, 2): its
// root mean square over all mantissas is u / sqrt(6) = 0.41 u, where u is the unit roundoff.
constexpr double rms_of_rounding = 0.41;

// Errors of independent roundings add like random numbers. Six standard deviations leave room for
// the worst of a million rows and for rows of few columns; a wrong index, scale or expert is two
// orders of magnitude further off.
constexpr double deviations = 6.0;

double square(double x) { return x * x; }

// Tensor cores cut 32 products of codes and the sum so far to 13 bits behind the leading one of the
// largest of them, and f32 takes over after 128. Of 128 products of normal numbers with rms 1, of
// which the sum has rms 11.3 and the largest addend in each step is about 8, that leaves an error
// of 0.29 * 2^-13 * 8 * sqrt(33) in each of four steps: 3e-4 of the sum.
constexpr double rms_of_cutting = 3e-4;

/// Distance of neighbouring codes, relative to a typical number of the block that shares their
/// scale.
double code_step(dtype codes) {
  switch (codes) {  // integers: of the block's largest, which is up to 6 times a typical one
    case dtype::int8:
      return 6.0 / 127.0;
    case dtype::int4:
      return 6.0 / 7.0;
    case dtype::fp4:
      return 0x1p-1;
    case dtype::e5m2:
      return 0x1p-2;
    default:  // e4m3
      return 0x1p-3;
  }
}

/// Root mean square error that rounding adds to numbers that differ by `difference` before it: a
/// share difference / step of them ends on another code, a whole step away. 0.8 is the mean of |x|
/// over its rms.
double after_rounding(double difference, double step) { return std::sqrt(0.8 * difference * step); }

}  // namespace

double unit_roundoff(dtype type) {
  switch (type) {
    case dtype::bf16:
      return 0x1p-8;
    case dtype::f16:
      return 0x1p-11;
    case dtype::e4m3:
      return 0x1p-4;
    case dtype::e5m2:
      return 0x1p-3;
    default:
      return 0x1p-24;
  }
}

// Addition i of n rounds a partial sum that is sqrt(i / n) of the whole: together as n / 2
// roundings of the whole.
double roundings_of_sum(index_t terms) { return static_cast<double>(terms) / 2.0 + 1.0; }

bool on_tensor_cores(problem const& p, compute_mode mode) {
  return mode == compute_mode::w8a8 && p.device.kind == device_kind::cuda &&
         value_type(p.weight) == dtype::e4m3;
}

double allowed_error(dtype io, rounding_path const& path, dtype codes) {
  double const stored = rms_of_rounding * unit_roundoff(io);
  double const summed = path.added * square(rms_of_rounding * unit_roundoff(dtype::f32)) +
                        (path.tensor_cores ? square(rms_of_cutting) : 0.0);
  double variance = path.stored * square(stored) + summed;
  if (path.recoded > 0.0) {
    // The oracle stores intermediates as the operations do. Its sums differ from theirs by
    // roundings, so some stored values differ by one step of the io type, and some of the codes
    // made from them by one step.
    double const before = after_rounding(std::sqrt(summed), 2.0 * unit_roundoff(io));
    double const inner = after_rounding(before, 2.0 * unit_roundoff(io));
    variance += path.recoded * square(after_rounding(inner, code_step(codes)));
  }
  return deviations * std::sqrt(variance);
}

double layer_tolerance(problem const& p, compute_mode mode, layer_output output, index_t rows) {
  bool const gated = is_gated(p.act.kind);
  double const
      weights =  // a weight is rounded to io before it is multiplied; the oracle takes it as it is
      mode == compute_mode::w8a16 || value_type(p.weight) != p.io ? 1.0 : 0.0;
  double const lora = p.lora > 0 ? 1.0 : 0.0;
  double const on_input = p.weight_on == weight_placement::input ? 1.0 : 0.0;
  // An error of x becomes twice that of x^2, four times in squares; the other activations pass it
  // on about as it is.
  double const gain = p.act.kind == activation::relu2 ? 4.0 : 1.0;
  double const pre_activation = gain * ((gated ? 2.0 : 1.0) + weights + on_input + lora);

  rounding_path path;
  path.added =
      gain * roundings_of_sum(p.hidden) + roundings_of_sum(p.inter) + roundings_of_function;
  double const sums_of_gradients = roundings_of_sum(p.hidden) + roundings_of_sum(2 * p.inter);
  switch (output) {
    case layer_output::y:
      // gate and up, the activation, the row, y; weights and low-rank intermediates of both
      // projections
      path.stored = pre_activation + 3.0 + weights + lora;
      if (mode == compute_mode::w8a8) {
        path.stored = 2.0;
        path.recoded = 2.0;
        path.tensor_cores = on_tensor_cores(p, mode);
      }
      break;
    case layer_output::dx:
      // gate and up again; gradients of the activation, of gate and up, of the row, dx; three
      // readings of weights
      path.stored = pre_activation + 4.0 + 2.0 * weights + 2.0 * lora + on_input;
      path.added += sums_of_gradients;
      break;
    case layer_output::d_weights:
      path.stored = pre_activation + 4.0 + 2.0 * weights + 2.0 * lora + on_input;
      path.added += sums_of_gradients + roundings_of_sum(p.hidden);
      break;
    case layer_output::parameter:
      path.stored = pre_activation + 4.0 + weights + 2.0 * lora;
      path.added += sums_of_gradients + roundings_of_sum(rows);
      break;
  }
  // Errors are in proportion to the intermediates of a token, and the bound is for one of typical
  // size. Over n columns that size varies by about 1 / sqrt(n) (products of normal numbers have
  // long tails); four times that is allowed for.
  double const tails = 1.0 + 4.0 / std::sqrt(static_cast<double>(std::min(p.hidden, p.inter)));
  dtype const codes = value_type(p.weight) == dtype::int8 ? dtype::int8 : dtype::e4m3;
  return tails * allowed_error(p.io, path, codes);
}

}  // namespace moe64::cases
