#pragma once

#include "moe64/ops.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

/// What is known about the activation of experts in configs: data, each row with its source.
namespace moe64::checkpoint {

/// What a key of a config says.
enum class activation_role : std::uint8_t {
  expert_function,  ///< the name of the function, of routed experts alone
  function,         ///< the name of the function, of every feed-forward part
  alpha,            ///< factor inside the sigmoid
  limit,            ///< one limit for all layers
  limits,           ///< a list of one limit per layer; null and 0: that layer does not clamp
  elsewhere,        ///< nothing about routed experts, though it looks like it
};

struct activation_key {
  std::string_view key;
  activation_role role = activation_role::elsewhere;
  std::string_view model_types;  ///< where it means that, separated by blanks; empty: everywhere
  std::string_view source;
};
[[nodiscard]] std::span<activation_key const> activation_keys() noexcept;

/// What a family does whatever its config says, and what it does where its config is silent.
struct activation_family {
  std::string_view model_types;            ///< separated by blanks
  std::string_view fixed_function = {};    ///< whatever the config names
  std::string_view default_function = {};  ///< where the config names none; empty: refused
  std::optional<activation> clamped = {};  ///< with a limit
  bool needs_limit = false;                ///< without one nothing runs
  float default_limit = 0.0F;              ///< where the config states none; 0: no default
  float default_alpha = 0.0F;              ///< the same
  std::string_view refusal = {};           ///< why its experts cannot run
  std::string_view source = {};
};
[[nodiscard]] std::span<activation_family const> activation_families() noexcept;

}  // namespace moe64::checkpoint
