#pragma once

#include "backend.hpp"

#include <string>

/// The problem line of a call: what the verbose output prints. It names extents and formats, not
/// the data, so a rerun has the same shape but synthetic routing and values.
namespace moe64 {

[[nodiscard]] std::string describe(quantize_args const& args);
[[nodiscard]] std::string describe(dequantize_args const& args);
[[nodiscard]] std::string describe(route_args const& args);
[[nodiscard]] std::string describe(route_backward_args const& args);
[[nodiscard]] std::string describe(plan_args const& args);
[[nodiscard]] std::string describe(gather_args const& args);
[[nodiscard]] std::string describe(combine_args const& args);
[[nodiscard]] std::string describe(slot_weight_gradient_args const& args);
[[nodiscard]] std::string describe(grouped_gemm_args const& args);
[[nodiscard]] std::string describe(grouped_gemm_wgrad_args const& args);
[[nodiscard]] std::string describe(activate_args const& args);
[[nodiscard]] std::string describe(activate_backward_args const& args);
[[nodiscard]] std::string describe(layer_calls const& calls);

}  // namespace moe64
