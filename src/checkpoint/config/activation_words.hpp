#pragma once

#include <string_view>

/// Which keys and texts of configs look as if they were about what experts compute, in any
/// spelling. What is known of keys is in activation_keys.hpp.
namespace moe64::checkpoint {

/// Whether a key looks as if it changed what routed experts compute: an activation, limit, clamp,
/// softcap, alpha or scale. `of_experts`: it is inside an object that is about them.
[[nodiscard]] bool looks_like_activation(std::string_view key, bool of_experts);
/// The same of a key in an object that may be about anything: only a clamp, cap or limit.
[[nodiscard]] bool looks_like_clamp(std::string_view key);
/// Whether an object of that name may hold something about experts further inside: a part of the
/// model that sees no images or sounds, and nothing about how weights are stored.
[[nodiscard]] bool may_hold_experts(std::string_view key) noexcept;
/// Whether an object of that name is about experts: "ffn_config".
[[nodiscard]] bool names_experts(std::string_view key) noexcept;
/// Whether a value is the name of a function: "gelu".
[[nodiscard]] bool names_function(std::string_view text) noexcept;

}  // namespace moe64::checkpoint
