#pragma once

#include "checkpoint/safetensors/writer.hpp"
#include "checkpoint/synth/fault.hpp"
#include "checkpoint/synth/format.hpp"
#include "moe64/synth.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe64::checkpoint {

/// What a tensor beside the quantised ones holds.
enum class synth_fill : std::uint8_t {
  normal,    ///< weights: around 0
  ones,      ///< norms: around 1
  positive,  ///< a scale of activations
  extents,   ///< the two integers `rows` and `cols`
};

struct synth_tensor {
  new_tensor file;
  synth_fill fill = synth_fill::normal;
  bool part = false;    ///< of a module: written together with it
  bool scaled = false;  ///< the next tensor is its scale
  index_t rows = 0;
  index_t cols = 0;
};

/// The matrices of one expert, or of all experts of a layer, whose tensors are written together.
/// Positions are those of plan.tensors; -1: it has none (or a fault took it away).
struct synth_module {
  std::string name;
  module_format format;
  key_schema schema = key_schema::mlp_proj;
  index_t layer = 0;
  index_t expert = 0;
  index_t values = -1;
  index_t scales = -1;
  index_t global = -1;
  index_t second_scales = -1;  ///< duplicate_scale: the same bytes once more
};

struct synth_plan {
  std::string like;
  std::string model_type;
  std::string dialect;  ///< that was asked for
  std::string stem;     ///< of file names
  synth_extents extents{""};
  index_t moe_layers = 0;
  index_t parameters = 0;
  std::vector<synth_tensor> tensors;
  std::vector<synth_module> modules;
  std::vector<std::pair<std::string, std::string>> documents;  ///< file name and text
  synth_fault_plan fault;
};

[[nodiscard]] synth_plan plan_synthesis(synth_options const& options);

/// Adds a tensor of a module; the answer is its position.
index_t add_synth_part(synth_plan& plan, synth_module const& module, std::string_view word,
                       file_dtype type, std::vector<index_t> shape);

/// Whether it is an up projection, or gate and up in one.
[[nodiscard]] bool is_up(synth_module const& module) noexcept;

/// Chooses the module that a fault is planted in: the last expert of the middle quantised layer,
/// since no reader may trust the first one. errc::invalid_argument when the format cannot have it.
void choose_synth_fault(synth_plan& plan);
/// Faults that change which tensors there are. What is not there keeps its place with an empty
/// name, so that positions stay.
void plant_in_names(synth_plan& plan);

/// The inside of a template of synth_family with extents and lists filled in.
[[nodiscard]] std::string synth_text(std::string_view text, synth_extents const& extents);

/// Whether a layer of the backbone has experts.
[[nodiscard]] bool synth_is_moe(synth_extents const& extents, index_t layer);
/// Whether it attends in full; others attend linearly.
[[nodiscard]] bool synth_is_full(synth_extents const& extents, index_t layer);

}  // namespace moe64::checkpoint
