#pragma once

#include "moe64/ops.hpp"
#include "support/buffer.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace moe64::test {

/// What a matrix product must give, in double, and the sum of the sizes of all terms: the measure
/// of what rounding may do. Rows that belong to no expert are NaN, as poison is.
struct reference_product {
  std::vector<double> y;     // [capacity, outs]
  std::vector<double> size;  // the same
};

/// y of grouped_gemm by its definition. Quantised weights are rounded to the type of a plain x.
[[nodiscard]] reference_product multiply(grouped_gemm_args const& args);

/// |error| that f32 sums of `terms` products of this size may have, plus one rounding to `type`:
/// every product and every addition is off by at most 2^-24 of what has been added so far.
[[nodiscard]] std::vector<double> rounding_bound(reference_product const& product, index_t terms,
                                                 dtype type);

/// y rounded to `type`.
[[nodiscard]] std::vector<double> rounded(std::vector<double> values, dtype type);

}  // namespace moe64::test
