#pragma once

#include "moe64/ops.hpp"
#include "support/layer_case.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moe64::test {

/// The calls of grouped_gemm that forward and backward of the case make, to be looked at and not to
/// be run: their operands have types, extents and strides, but one row, one expert and no memory.
[[nodiscard]] std::vector<grouped_gemm_args> layer_products(layer_case const& c);

/// Implementations that take each of them, the best first: those that the layer can be forced to.
[[nodiscard]] std::vector<std::string> implementations_of(layer_case const& c);

/// One of them, or none (the best for each call), by the seed of the case. Those that take few
/// cases are preferred, so that all of them are drawn often.
[[nodiscard]] std::string draw_implementation(layer_case const& c);

/// body(case) once without and once with each implementation that takes the case.
template <class Body>
void for_each_implementation(layer_case c, Body const& body) {
  std::vector<std::string> names = implementations_of(c);
  EXPECT_FALSE(names.empty()) << to_string(c);
  names.emplace_back();
  for (std::string& name : names) {
    SCOPED_TRACE("implementation " + (name.empty() ? "best" : name));
    c.implementation = name;
    body(static_cast<layer_case const&>(c));
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace moe64::test
