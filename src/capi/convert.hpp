#pragma once

#include "capi/checks.hpp"
#include "moe64/layer.hpp"
#include "moe64/moe64.h"

#include <array>

/// The types of moe64.h and those of C++, into each other. What comes in is checked only for what
/// C++ cannot express: enumerators without a name, NULL, reserved fields. All else is checked by
/// the operation itself.

struct moe64_weights {
  moe64::weight_stack stack;
};

namespace moe64::capi {

[[nodiscard]] device to_cpp(moe64_device const& given, argument const& at);
[[nodiscard]] stream to_cpp(moe64_stream const& given, argument const& at);
[[nodiscard]] tensor_view to_cpp(moe64_tensor const& given, argument const& at);
[[nodiscard]] std::array<tensor_view, 2> to_cpp(moe64_tensor const (&given)[2], argument const& at);
[[nodiscard]] workspace to_cpp(moe64_workspace const& given, argument const& at);
[[nodiscard]] granularity to_cpp(moe64_granularity const& given, argument const& at);
[[nodiscard]] global_scale to_cpp(moe64_global_scale const& given, argument const& at);
[[nodiscard]] expert_places to_cpp(moe64_expert_places const& given, argument const& at);
[[nodiscard]] quantized_view to_cpp(moe64_quantized const& given, argument const& at,
                                    expert_places const& places = {});
[[nodiscard]] routing_plan to_cpp(moe64_routing_plan const& given, argument const& at);
[[nodiscard]] activation_spec to_cpp(moe64_activation_spec const& given, argument const& at);
[[nodiscard]] dtype to_cpp_dtype(moe64_dtype given, argument const& at);

/// A stack that may be left out: NULL is absent.
[[nodiscard]] inline weight_stack optional_stack(moe64_weights const* given) {
  return given == nullptr ? weight_stack{} : given->stack;
}
/// An implementation's name; NULL takes the best.
[[nodiscard]] inline std::string_view optional_text(char const* given) {
  return given == nullptr ? std::string_view{} : std::string_view{given};
}

[[nodiscard]] moe64_tensor to_c(tensor_view const& given) noexcept;
/// Without places.
[[nodiscard]] moe64_quantized to_c(quantized_view const& given) noexcept;
[[nodiscard]] moe64_routing_plan to_c(routing_plan const& given) noexcept;

}  // namespace moe64::capi
