#pragma once

#include "checkpoint/naming/key_schema.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace moe64::checkpoint {

/// What the name of a tensor of an adapter says: "base_model.model.PATH.lora_A.weight", where each
/// ".base_layer" in PATH stands for one more adapter around the same module.
struct adapter_key {
  std::string path;   ///< of the module in the model, without ".base_layer"
  index_t inner = 0;  ///< how many adapters are around this one
  bool is_b = false;
};
/// Empty for any other name.
[[nodiscard]] std::optional<adapter_key> match_adapter_key(std::string_view name);

/// What the path of a module of experts says, as Transformers holds them in memory and as it did
/// when each expert was a module.
struct experts_path {
  std::string_view prefix;  ///< up to "layers."
  index_t layer = 0;
  index_t expert = -1;                                 ///< -1: the module of all experts
  projection_kind projection = projection_kind::gate;  ///< of a single expert
};
[[nodiscard]] std::optional<experts_path> match_experts_path(std::string_view path) noexcept;

/// The path up to "layers." (up to its last component where there is none), and the rest.
struct split_path {
  std::string_view prefix;
  std::string_view rest;
};
[[nodiscard]] split_path split_at_layers(std::string_view path) noexcept;

/// Whether a path begins as those of language models do, whatever class wraps them: the same
/// module has several such names.
[[nodiscard]] bool is_language_prefix(std::string_view prefix) noexcept;

}  // namespace moe64::checkpoint
