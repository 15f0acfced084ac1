#pragma once

#include "checkpoint/config/model_config.hpp"
#include "checkpoint/findings/findings.hpp"
#include "checkpoint/naming/key_schema.hpp"
#include "checkpoint/safetensors/tensor_entry.hpp"

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// The tensors of one module, by their part; null where there is none.
struct module_tensors {
  std::string_view module;
  key_schema schema = key_schema::mlp_proj;  ///< of the values when there are any
  projection_kind projection = projection_kind::gate;
  bool expert_module = false;
  bool mtp = false;
  bool packed = false;  ///< the values are `weight_packed`
  index_t layer = 0;
  index_t expert = -1;
  std::array<tensor_entry const*, tensor_part_count> parts = {};

  [[nodiscard]] tensor_entry const* part(tensor_part which) const noexcept {
    return parts[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] tensor_entry const* values() const noexcept { return part(tensor_part::weight); }
  /// A tensor to name the module by: its values, or whatever it has.
  [[nodiscard]] std::string_view any_name() const noexcept;
};

/// All tensors of a checkpoint, sorted into modules.
struct module_inventory {
  std::vector<module_tensors> experts;  ///< by mtp, layer, projection, expert
  std::vector<module_tensors> dense;    ///< modules beside the experts that have a quantised weight
                                        ///< or a scale, by name
  index_t expert_tensors = 0;
  index_t activation_scales = 0;
  index_t shared_expert_tensors = 0;  ///< they belong to no expert stack: run apart
  index_t other_tensors = 0;
};

/// One pass over the names. Layers from num_hidden_layers on count as MTP layers.
[[nodiscard]] module_inventory take_inventory(std::span<tensor_entry const> tensors,
                                              model_config const& config, findings& found);

}  // namespace moe64::checkpoint
