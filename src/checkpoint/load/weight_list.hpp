#pragma once

#include "checkpoint/dialect/resolved_checkpoint.hpp"

#include <vector>

namespace moe64::checkpoint {

/// One tensor of weights with all that belongs to it: a matrix, or a stack of all experts.
struct weight_module {
  std::string_view module;  ///< its name without what `.weight` or `_blocks` add
  module_format format;
  tensor_entry const* values = nullptr;
  tensor_entry const* scales = nullptr;
  tensor_entry const* global = nullptr;
  tensor_entry const* weight_shape = nullptr;
  bool of_experts = false;
  key_schema schema = key_schema::mlp_proj;  ///< of experts
  projection_kind projection = projection_kind::gate;
  bool mtp = false;
  index_t layer = 0;
  index_t expert = -1;  ///< -1: all of them

  [[nodiscard]] bool quantised() const noexcept { return format.scales != scale_codec::none; }
};

/// Routed experts of sound layers, then the quantised modules beside them.
[[nodiscard]] std::vector<weight_module> weights_of(resolved_checkpoint const& resolved);

}  // namespace moe64::checkpoint
