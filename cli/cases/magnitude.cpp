#include "cases/magnitude.hpp"

#include "oracle/oracle.hpp"

#include <cmath>

namespace moe64::cases {

activation_magnitude magnitude_of(activation_spec const& spec, double deviation) {
  constexpr int steps = 40;
  double weights = 0.0;
  double values = 0.0;
  double gradients = 0.0;
  auto const normal = [](int i) { return 5.0 * (2.0 * i + 1.0 - steps) / steps; };
  for (int i = 0; i < steps; ++i) {
    for (int j = 0; j < steps; ++j) {
      double const gate = normal(i);
      double const up = normal(j);
      double const weight = std::exp(-0.5 * (gate * gate + up * up));
      double const value = oracle::activate(spec, gate * deviation, up * deviation);
      auto const gradient = oracle::activate_backward(spec, gate * deviation, up * deviation, 1.0);
      weights += weight;
      values += weight * value * value;
      gradients += weight * (gradient.gate * gradient.gate + gradient.up * gradient.up);
    }
  }
  return {std::sqrt(values / weights), std::sqrt(gradients / weights)};
}

}  // namespace moe64::cases
