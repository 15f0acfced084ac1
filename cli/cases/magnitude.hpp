#pragma once

#include "moe64/ops.hpp"

namespace moe64::cases {

/// Root mean squares that an activation gives to inputs that are normal with a deviation of
/// `deviation`, of the activation itself and of its gradient (gate and up together): what layer
/// outputs are made to have.
struct activation_magnitude {
  double value = 0.0;
  double gradient = 0.0;
};
[[nodiscard]] activation_magnitude magnitude_of(activation_spec const& spec, double deviation);

}  // namespace moe64::cases
