#pragma once

#include "moe64/device.hpp"
#include "moe64/export.hpp"
#include "moe64/finding.hpp"
#include "moe64/index.hpp"
#include "moe64/layer.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace moe64 {

/// How far a long job is. Called from one thread at a time, a few times a second at most. It may
/// throw (errc::interrupted is meant for it): the job then stops, and leaves nothing half-written
/// under a final name.
using progress_report = std::function<void(index_t done_bytes, index_t total_bytes)>;

struct checkpoint_options {
  bool lenient = false;       ///< accept unknown fields in safetensors headers
  bool follow_links = false;  ///< any symbolic link, not only those of a Hub cache
  bool mapped = false;        ///< mmap instead of pread
  /// What the files leave open or say wrongly, such as "block=128x128": docs/checkpoints.md.
  std::vector<std::string> assume = {};
};

/// A checkpoint on disk, opened and understood: headers validated, index checked, every expert
/// weight matched with its scales. What is wrong with its meaning is in findings(); a file that
/// breaks the rules of its format is an exception. All const members may be called from several
/// threads at once.
class MOE64_API checkpoint_reader {
 public:
  /// A folder, or one safetensors file. errc::malformed_file or errc::io_failure with the file's
  /// name.
  explicit checkpoint_reader(std::string const& path, checkpoint_options const& options = {});
  checkpoint_reader(checkpoint_reader&&) noexcept;
  checkpoint_reader& operator=(checkpoint_reader&&) noexcept;
  ~checkpoint_reader();

  [[nodiscard]] std::string const& path() const noexcept;
  [[nodiscard]] std::vector<finding> findings() const;

  struct state;  ///< src/checkpoint/load/opened.hpp
  [[nodiscard]] state const& internals() const noexcept { return *state_; }

 private:
  std::unique_ptr<state> state_;
};

// ---- what is in it ------------------------------------------------------------------------------

/// All tensors of one stored type.
struct stored_type {
  std::string name;  ///< as the files spell it: "F8_E4M3"
  index_t tensors = 0;
  index_t bytes = 0;
};

/// How gate, up or down of the experts of one layer is stored, and what the library takes it for.
struct projection_description {
  index_t rows = 0;           ///< outputs of one expert
  index_t cols = 0;           ///< inputs
  std::string stored_values;  ///< "F8_E4M3", "I32"; empty when the projection cannot be read
  std::string stored_scales;  ///< "F32", "U8"; empty: it needs none
  dtype type = dtype::bf16;   ///< of the values as load_layer gives them
  granularity layout;         ///< as stored
  dtype scale_type = dtype::f32;
  bool has_global = false;  ///< a second scale per expert ...
  global_scale::direction global = global_scale::direction::multiply;  ///< ... that does this
  bool stacked = false;                                   ///< one tensor for all experts
  bool fused = false;                                     ///< gate and up are one tensor
  bool transposed = false;                                ///< stored [in, out]
  gate_up_layout gate_up = gate_up_layout::concatenated;  ///< of a fused one
  bool has_bias = false;
};

/// The extent of the values of one projection of all experts, if they lay in one piece.
struct stack_extent {
  index_t elements = 0;
  index_t bytes = 0;

  /// A signed 32-bit index does not reach all of it.
  [[nodiscard]] bool passes_int32_elements() const noexcept { return elements > INT32_MAX; }
  /// Nor does an unsigned 32-bit byte offset: 4 GiB and more.
  [[nodiscard]] bool passes_uint32_bytes() const noexcept { return bytes > UINT32_MAX; }
};

struct layer_description {
  index_t layer = 0;
  bool mtp = false;     ///< of multi-token prediction, not of the backbone
  bool sound = false;   ///< load_layer takes it
  std::string problem;  ///< why it is not sound; safe to print
  std::string dialect;  ///< "D8", or "plain"
  std::string keys;     ///< the naming schema: "mlp_proj_packed"
  index_t experts = 0;
  index_t hidden = 0;
  index_t inter = 0;
  std::optional<activation_spec> activation;  ///< empty: not known, the layer cannot be loaded
  projection_description gate;                ///< the one matrix of experts without a gate
  projection_description up;                  ///< without a gate: nothing
  projection_description down;
  index_t parameters = 0;    ///< weights and biases of all experts
  index_t stored_bytes = 0;  ///< values, scales and biases in the files
  index_t loaded_bytes = 0;  ///< layer_bytes() of all experts; 0 when it is not sound
  stack_extent gate_up;      ///< gate and up together
  stack_extent down_stack;
};

/// Everything that `moe64 inspect` tells. Extents that the config does not state are -1.
struct checkpoint_description {
  std::string model_type;  ///< of config.json; empty when there is none
  std::string text_model_type;
  std::string quant_method;  ///< as declared, or empty
  std::string quant_source;  ///< where it is declared
  std::vector<std::string> dialects;
  std::vector<std::string> assumed;  ///< what was stated instead of the files
  index_t hidden = -1;
  index_t inter = -1;
  index_t experts = -1;
  index_t top_k = -1;
  index_t layers = -1;
  index_t mtp_layers = -1;
  std::optional<activation_spec> activation;  ///< of all layers; empty: not known, or they differ
  activation_scheme scheme = activation_scheme::unstated;
  index_t shards = 0;
  index_t tensors = 0;
  index_t tensor_bytes = 0;
  index_t file_bytes = 0;
  std::vector<stored_type> types;             ///< the largest first
  std::vector<layer_description> layer_list;  ///< the backbone in order, then MTP layers
  index_t expert_parameters = 0;              ///< of all layers
  index_t expert_bytes = 0;                   ///< in the files
  index_t weights_found = 0;                  ///< quantised weights, experts and others
  index_t scales_found = 0;                   ///< first-level scales of weights
  index_t matched = 0;                        ///< weights whose scale was found and fits
  index_t activation_scales = 0;
  index_t shared_expert_tensors = 0;
  index_t errors = 0;
  index_t warnings = 0;
};

[[nodiscard]] MOE64_API checkpoint_description describe(checkpoint_reader const& from);

// ---- loading ------------------------------------------------------------------------------------

/// Which experts of which layer.
struct layer_request {
  index_t layer = 0;
  bool mtp = false;
  index_t first_expert = 0;
  index_t experts = -1;  ///< so many from first_expert on; -1: all that follow
};

/// Bytes of host memory that load_layer needs, exactly. Refuses what load_layer refuses before it
/// reads.
[[nodiscard]] MOE64_API index_t layer_bytes(checkpoint_reader const& from,
                                            layer_request const& request);

/// Reads the experts of a layer into `memory`, layer_bytes() of it, and describes them there: the
/// memory must live as long as the layer is used. Every tensor is read once, straight to its place,
/// by the executor of `where` (a CPU stream) in pieces of at most 8 MiB; a fused gate_up tensor is
/// one piece of memory with two views. Two things are changed on the way: nibbles stored with an
/// offset become two's complement in place, and where a block of scales covers gate and up rows
/// each part gets one row of scales per row. Activation, activation scheme and the place of the
/// slot weight come from the config; experts_total and first_expert are set when the request is for
/// a part.
///   A layer that is not sound is refused with what was found (its code: errc::missing_scale,
/// errc::shape_mismatch, ...); errc::io_failure when a file cannot be read or has changed since it
/// was opened. When it throws, the content of `memory` is unspecified.
[[nodiscard]] MOE64_API layer_desc load_layer(checkpoint_reader const& from,
                                              layer_request const& request, workspace memory,
                                              stream where, progress_report const& progress = {});

}  // namespace moe64
