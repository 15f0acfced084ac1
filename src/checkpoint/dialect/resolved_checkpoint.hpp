#pragma once

#include "checkpoint/config/layer_activation.hpp"
#include "checkpoint/config/model_config.hpp"
#include "checkpoint/dialect/stack_format.hpp"
#include "checkpoint/findings/findings.hpp"
#include "checkpoint/safetensors/tensor_entry.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

class folder;

/// Where the matrix of one expert is read from. Null where it has none. The tensors may be in
/// different shards.
struct expert_source {
  tensor_entry const* values = nullptr;
  tensor_entry const* scales = nullptr;
  tensor_entry const* global = nullptr;
  tensor_entry const* bias = nullptr;
  tensor_entry const* weight_shape = nullptr;  ///< two integers that must be (rows, cols)
  index_t slice = 0;  ///< which expert of a stack; 0 in a tensor of its own

  [[nodiscard]] bool present() const noexcept { return values != nullptr; }
};

/// One projection of all experts. Gate and up of a fused tensor have the same sources and two
/// formats: read the tensor once, look at it twice.
struct projection_entry {
  module_format module;
  stack_format format;
  bool stacked = false;  ///< all sources are one tensor
  bool has_bias = false;
  placement bias;  ///< in the bias tensor; col_stride does not matter
  dtype bias_type = dtype::bf16;
  std::vector<expert_source> experts;

  [[nodiscard]] bool present() const noexcept { return !experts.empty(); }
};

struct layer_entry {
  index_t layer = 0;
  bool mtp = false;
  key_schema schema = key_schema::mlp_proj;
  std::string_view dialect;  ///< "D8", or "plain" for a layer that is not quantised
  index_t experts = 0;
  bool sound = false;     ///< nothing of it is wrong: it can be loaded
  projection_entry gate;  ///< the one matrix of experts without a gate
  projection_entry up;    ///< absent without a gate
  projection_entry down;
  layer_activation activation;
};

/// A quantised module beside the routed experts: attention, dense layers, shared experts.
struct dense_entry {
  std::string_view module;
  module_format format;
  tensor_entry const* values = nullptr;
  tensor_entry const* scales = nullptr;
  tensor_entry const* global = nullptr;
};

/// What a checkpoint is. It points into the tensors that it was resolved from.
struct resolved_checkpoint {
  model_config config;
  std::optional<activation_spec> activation;  ///< that all layers share, if they do
  std::vector<std::string> assumed;        ///< what the user stated, to be recorded in any output
  std::vector<std::string_view> dialects;  ///< ids in use, "plain" among them
  std::vector<layer_entry> layers;         ///< the backbone in order, then MTP layers
  std::vector<dense_entry> dense;
  index_t weights_found = 0;  ///< quantised weights, experts and others
  index_t scales_found = 0;   ///< first-level scales of weights
  index_t matched = 0;        ///< weights whose scale was found and fits
  index_t activation_scales = 0;
  index_t shared_expert_tensors = 0;
  index_t other_tensors = 0;
  findings found;

  [[nodiscard]] bool sound() const noexcept { return found.count(finding_level::error) == 0; }
  [[nodiscard]] layer_entry const* layer(index_t number, bool mtp = false) const noexcept;
};

struct resolve_options {
  assumptions assumed;
  index_t kept_per_rule = 32;  ///< findings that keep their text
};

/// Finds out what the tensors mean. Never stops at a problem: everything wrong is in `found`.
[[nodiscard]] resolved_checkpoint resolve(std::span<tensor_entry const> tensors,
                                          config_sources const& sources,
                                          resolve_options const& options = {});
[[nodiscard]] resolved_checkpoint resolve(folder const& opened,
                                          resolve_options const& options = {});

/// Throws the first error, with the number of the others.
void require_sound(resolved_checkpoint const& resolved);

}  // namespace moe64::checkpoint
