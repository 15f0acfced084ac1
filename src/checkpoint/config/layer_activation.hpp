#pragma once

#include "checkpoint/config/assumptions.hpp"
#include "checkpoint/config/model_config.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"

#include <optional>
#include <string>

namespace moe64::checkpoint {

/// The activation of the experts of a layer as the library runs it, or why it is not known.
struct layer_activation {
  std::optional<activation_spec> spec;
  errc code = errc::unsupported;  ///< of the refusal
  std::string refusal;            ///< empty where there is one; safe to print
};

/// Which layer, and whether its experts have a gate.
struct activation_query {
  index_t layer = 0;
  bool mtp = false;
  bool gated = true;
};

/// What the config states, else what the family does (activation_keys.hpp), never a guess: a key
/// that is not understood, a contradiction, a missing parameter or a silent config is a refusal
/// that names it. What the user assumes comes before the config.
[[nodiscard]] layer_activation activation_of(model_config const& config, assumptions const& assumed,
                                             activation_query const& query);

/// Whether both compute the same: parameters that their kind does not read do not count.
[[nodiscard]] bool same_activation(activation_spec const& left,
                                   activation_spec const& right) noexcept;

}  // namespace moe64::checkpoint
