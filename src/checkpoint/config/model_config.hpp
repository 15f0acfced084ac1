#pragma once

#include "checkpoint/config/activation_facts.hpp"
#include "checkpoint/config/quant_declaration.hpp"
#include "moe64/layer.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// "4.57.0" as numbers; further parts do not matter here.
struct library_version {
  index_t major = 0;
  index_t minor = 0;

  friend constexpr auto operator<=>(library_version const&, library_version const&) = default;
};

/// Extents that the config states for the expert layers.
struct model_geometry {
  fact<index_t> hidden;  ///< of the experts: of a latent space where they work in one
  fact<index_t> inter;   ///< of one routed expert
  fact<index_t> experts;
  fact<index_t> top_k;
  fact<index_t> layers;      ///< of the backbone
  fact<index_t> mtp_layers;  ///< of multi-token prediction, numbered after the backbone or apart
};

/// What config.json, hf_quant_config.json and params.json state.
struct model_config {
  std::string model_type;       ///< of the whole model; safe to print
  std::string text_model_type;  ///< of its language part, or empty
  std::optional<library_version> transformers;
  model_geometry geometry;
  /// Per backbone layer, whether the config says that it has routed experts; empty: it does not
  /// say.
  std::vector<bool> moe_layers;
  std::string moe_layers_source;
  activation_facts activation;
  quant_declaration quant;

  /// Whether the model or its language part is one of these types ("_text" endings aside).
  [[nodiscard]] bool is_type(std::string_view type) const noexcept;
  /// is_type of any of the types in a list separated by blanks.
  [[nodiscard]] bool is_one_of(std::string_view types) const noexcept;
};

/// Reads what is there; what contradicts itself or is of the wrong kind is an error in `found`.
[[nodiscard]] model_config read_model_config(config_sources const& sources, findings& found);

/// Whether activations are declared to be quantised on the fly.
[[nodiscard]] activation_scheme activation_scheme_of(model_config const& config) noexcept;
/// Llama-4 multiplies the inputs of experts by the slot weight, all others their outputs.
[[nodiscard]] weight_placement weight_placement_of(model_config const& config) noexcept;

}  // namespace moe64::checkpoint
