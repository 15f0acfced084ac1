#pragma once

#include "oracle/oracle.hpp"

#include <vector>

namespace moe64::oracle {

/// Numbers in row-major order, where a tensor would be in the way.
struct number_matrix {
  std::vector<double> values;  // [rows, cols]
  index_t rows = 0, cols = 0;
};

/// quantize() of numbers that f32 can hold.
[[nodiscard]] quantized_matrix quantize_numbers(number_matrix const& x, dtype code, dtype scale,
                                                granularity const& layout,
                                                global_scale::direction applied);

/// `row` [cols] as w8a8 reads it for `weights`: codes times scales.
[[nodiscard]] std::vector<double> quantized_activation(std::vector<double> const& row,
                                                       weight_stack const& weights);

}  // namespace moe64::oracle
