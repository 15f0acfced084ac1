#pragma once

#include "moe64/device.hpp"
#include "moe64/export.hpp"
#include "moe64/ops.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace moe64 {

enum class compute_mode : std::uint8_t {
  automatic = 0,  ///< see resolve_mode
  w8a16 = 1,      ///< quantised weights, dequantised inside the GEMM to the activations' type
  w8a8 = 2,       ///< activations quantised on the fly as well
  native = 3,     ///< plain weights
};
[[nodiscard]] MOE64_API std::string_view name(compute_mode mode) noexcept;

/// What the checkpoint says about activations.
enum class activation_scheme : std::uint8_t {
  unstated = 0,
  dynamic = 1,  ///< quantised on the fly
};

/// Where a slot's weight is applied: to the expert's output, or to its input (Llama-4).
enum class weight_placement : std::uint8_t { output = 0, input = 1 };

/// LoRA of a projection: + scaling * (x A^T) B^T, rounded together with the base. The factors
/// are plain stacks.
struct lora_adapter {
  weight_stack a = {};  ///< [experts, rank, in]
  weight_stack b = {};  ///< [experts, out, rank], with the same parts as the base
  float scaling = 1.0F;

  [[nodiscard]] bool present() const noexcept { return a.present() || b.present(); }
};

struct projection {
  weight_stack weights;
  per_part bias = {};      ///< per part [experts, part_rows] f32, bf16, f16, or absent
  lora_adapter lora = {};  ///< absent by default
};

/// One expert layer: y[t] = sum over k of weight(t, k) * down(activation(gate_up(x[t]))) of expert
/// id(t, k).
struct layer_desc {
  projection gate_up;  ///< gated: two parts [experts, inter, hidden]; otherwise one
  projection down;     ///< [experts, hidden, inter]
  activation_spec activation = {};
  compute_mode mode = compute_mode::automatic;
  activation_scheme scheme = activation_scheme::unstated;
  weight_placement weight_on = weight_placement::output;
  index_t experts_total = 0;  ///< 0: the stacks hold all experts; else they hold a part ...
  index_t first_expert = 0;   ///< ... that begins here
  std::string_view implementation = {};  ///< forces the grouped_gemm implementation

  [[nodiscard]] index_t hidden() const noexcept { return gate_up.weights.cols(); }
  [[nodiscard]] index_t inter() const noexcept { return down.weights.cols(); }
  [[nodiscard]] index_t experts() const noexcept { return down.weights.experts(); }
};

/// The extents of one call.
struct layer_shape {
  index_t tokens = 0;
  index_t top_k = 0;
  dtype io = dtype::bf16;  ///< type of x, y and everything between: f32, bf16 or f16
};

struct mode_choice {
  compute_mode mode = compute_mode::native;
  std::string reason;
};

/// The mode that `layer` runs in on `where` with x of type `io`, and why. Automatic: plain weights:
/// native; a checkpoint that states dynamic activation quantisation: w8a8 where the device
/// multiplies 8-bit floats and takes both projections so (docs/numerics.md); otherwise w8a16. It
/// looks at the layer, `io` and the hardware, never at the number of tokens. A mode that the
/// formats rule out is errc::unsupported.
[[nodiscard]] MOE64_API mode_choice resolve_mode(layer_desc const& layer, dtype io,
                                                 moe64::device where);

/// How activations are quantised in w8a8 for weights of this granularity: blocks and groups: 1 x
/// 128; tensor and row: one scale per row.
[[nodiscard]] MOE64_API granularity activation_granularity(granularity const& weights);

/// Memory that must survive from forward to backward: the plan and the gate_up output.
[[nodiscard]] MOE64_API index_t saved_bytes(layer_desc const& layer, layer_shape const& shape,
                                            moe64::device where);
/// Scratch of forward. Without `saved` memory forward keeps its plan here too, so ask with
/// keeps_saved = false.
[[nodiscard]] MOE64_API index_t forward_bytes(layer_desc const& layer, layer_shape const& shape,
                                              bool keeps_saved, moe64::device where);

/// Operands of forward.
struct forward_args {
  tensor_view x;             ///< [..., hidden] f32, bf16, f16
  tensor_view expert_ids;    ///< [tokens, top_k] int32 or int64 (or [..., top_k] like x)
  tensor_view weights = {};  ///< [tokens, top_k] f32, bf16, f16, or absent (1)
  index_t capacity = -1;     ///< most rows per expert; -1: no limit
  tensor_view y;             ///< out: extents and type of x
  workspace saved = {};      ///< out: saved_bytes() when backward follows, or empty
  workspace scratch;         ///< forward_bytes()
};
MOE64_API void forward(layer_desc const& layer, forward_args const& args, stream where);

/// The plan that forward left in `saved`: counts of kept, skipped and dropped slots are in its
/// status.
[[nodiscard]] MOE64_API routing_plan saved_plan(layer_desc const& layer, layer_shape const& shape,
                                                workspace saved);

/// Gradients of one projection; absent views are not computed. Gradients of quantised weights do
/// not exist: asking for one is errc::unsupported.
struct projection_gradients {
  per_part weights = {};    ///< out, per part [experts, part_rows, cols] f32, bf16, f16
  per_part bias = {};       ///< out, per part [experts, part_rows] f32, bf16, f16
  tensor_view lora_a = {};  ///< out [experts, rank, in] f32, bf16, f16
  per_part lora_b = {};     ///< out, per part [experts, part_rows, rank] f32, bf16, f16
};

/// What backward shall compute.
struct layer_gradients {
  tensor_view x = {};        ///< out [..., hidden], type of x
  tensor_view weights = {};  ///< out [tokens, top_k] f32: the slot weights
  projection_gradients gate_up = {};
  projection_gradients down = {};
};

[[nodiscard]] MOE64_API index_t backward_bytes(layer_desc const& layer, layer_shape const& shape,
                                               layer_gradients const& gradients,
                                               moe64::device where);

/// Operands of backward. Weights are read as w8a16 whatever mode forward ran in.
struct backward_args {
  tensor_view x;   ///< the x of forward
  tensor_view dy;  ///< [..., hidden], type of x
  index_t top_k = 0;
  workspace saved;    ///< from forward
  workspace scratch;  ///< backward_bytes()
  layer_gradients gradients = {};
};
MOE64_API void backward(layer_desc const& layer, backward_args const& args, stream where);

}  // namespace moe64
