#pragma once

#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "moe64/checkpoint.hpp"
#include "moe64/error.hpp"

#include <optional>
#include <string>

namespace moe64::checkpoint {

/// Why a layer cannot be loaded.
struct layer_refusal {
  errc code = errc::invalid_argument;
  std::string text;  ///< of the first finding about it; safe to print
};
[[nodiscard]] std::optional<layer_refusal> refusal_of(resolved_checkpoint const& resolved,
                                                      layer_entry const& layer);

/// A layer that can be loaded, and the experts of it that are wanted.
struct expert_range {
  layer_entry const* layer = nullptr;
  index_t first = 0;
  index_t count = 0;
};
/// errc::invalid_argument for a layer or expert that is not there, the code of the finding for a
/// layer that is not sound.
[[nodiscard]] expert_range require_range(resolved_checkpoint const& resolved,
                                         layer_request const& request);

}  // namespace moe64::checkpoint
