#pragma once

#include "moe64/index.hpp"

#include <functional>
#include <vector>

namespace moe64::cases {

/// The experts whose gradients of parameters are compared.
struct expert_sample {
  std::vector<index_t> experts;  ///< sorted
  double share = 1.0;            ///< of the work of each that the budget pays for
};

/// Of the experts `used`: the last, the first, then as many as the budget allows. Where it does not
/// allow the last one whole, the first and the last in parts.
[[nodiscard]] expert_sample experts_within(std::vector<index_t> const& used, double budget,
                                           std::function<double(index_t expert)> const& cost);

}  // namespace moe64::cases
