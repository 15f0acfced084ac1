#pragma once

#include "checkpoint/dialect/resolved_checkpoint.hpp"

#include <span>

namespace moe64::checkpoint {

/// Puts the expert modules of one layer together.
class layer_resolver {
 public:
  /// `experts`: the count that the config (or an assumption) states, 0 when unstated.
  layer_resolver(module_resolver& modules, index_t experts, resolved_checkpoint& into)
      : modules_(modules), stated_experts_(experts), into_(into), found_(into.found) {}

  /// `modules`: all of one layer, sorted by projection and expert.
  void add(std::span<module_tensors const> modules);

 private:
  [[nodiscard]] bool check_names(std::span<module_tensors const> modules);
  [[nodiscard]] bool add_projection(std::span<module_tensors const> modules, layer_entry& layer);
  [[nodiscard]] bool add_stack(std::span<module_tensors const> modules, layer_entry& layer);
  [[nodiscard]] bool add_experts(std::span<module_tensors const> modules, layer_entry& layer);
  [[nodiscard]] bool check_count(std::span<module_tensors const> modules, index_t experts);
  [[nodiscard]] bool add_bias(module_tensors const& module, projection_entry& entry, int part);
  [[nodiscard]] bool check_parts(layer_entry const& layer, std::string_view any_name);
  [[nodiscard]] bool check_alone(layer_entry const& layer, std::string_view any_name);
  void count(module_tensors const& module, bool fits);

  module_resolver& modules_;
  index_t stated_experts_;
  resolved_checkpoint& into_;
  findings& found_;
};

/// The first-level scale of a module, or null.
[[nodiscard]] tensor_entry const* scale_of(module_tensors const& module) noexcept;
/// Its global scale, or null.
[[nodiscard]] tensor_entry const* global_of(module_tensors const& module) noexcept;

}  // namespace moe64::checkpoint
