#pragma once

#include "support/buffer.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"

#include <cstddef>
#include <limits>

/// What the tests of gather and combine share.
namespace moe64::test {

inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};

inline std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

/// Sentinels, duplicates, an expert without rows, dropped slots; weights of all sizes.
inline test_plan varied_plan(index_t tokens = 23, index_t top_k = 3) {
  return make_plan({.tokens = tokens,
                    .top_k = top_k,
                    .experts = 5,
                    .ids = random_ids(4, tokens * top_k, 4),
                    .weights = random_weights(5, tokens * top_k),
                    .capacity = 9});
}

}  // namespace moe64::test
