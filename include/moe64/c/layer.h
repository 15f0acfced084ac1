#pragma once

#include "moe64/c/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- the layer ----------------------------------------------------------------------------------

typedef uint8_t moe64_compute_mode;
enum {
  MOE64_MODE_AUTOMATIC = 0,  ///< see moe64_resolve_mode
  MOE64_MODE_W8A16 =
      1,                ///< quantised weights, dequantised inside the GEMM to the activations' type
  MOE64_MODE_W8A8 = 2,  ///< activations quantised on the fly as well
  MOE64_MODE_NATIVE = 3,  ///< plain weights
};

typedef uint8_t moe64_activation_scheme;
enum {
  MOE64_SCHEME_UNSTATED = 0,
  MOE64_SCHEME_DYNAMIC = 1,  ///< the checkpoint states that activations are quantised on the fly
};

typedef uint8_t moe64_weight_placement;
enum {
  MOE64_WEIGHT_ON_OUTPUT = 0,
  MOE64_WEIGHT_ON_INPUT = 1,  ///< the slot's weight multiplies the expert's input (Llama-4)
};

/// LoRA of a projection: + scaling * (x A^T) B^T. The factors are plain stacks.
typedef struct moe64_lora_adapter {
  const moe64_weights* a;  ///< [experts, rank, in], or NULL (both): no LoRA
  const moe64_weights* b;  ///< [experts, out, rank], with the same parts as the base
  float scaling;           ///< default 1
  uint32_t reserved;
} moe64_lora_adapter;

typedef struct moe64_projection {
  const moe64_weights* weights;
  moe64_tensor bias[2];  ///< per part [experts, part_rows] f32, bf16, f16, or absent
  moe64_lora_adapter lora;
} moe64_projection;

/// One expert layer: y[t] = sum over k of weight(t, k) * down(activation(gate_up(x[t]))) of expert
/// id(t, k).
typedef struct moe64_layer_desc {
  uint64_t struct_size;
  moe64_projection gate_up;  ///< gated: two parts [experts, inter, hidden]; otherwise one
  moe64_projection down;     ///< [experts, hidden, inter]
  moe64_activation_spec activation;
  moe64_compute_mode mode;
  moe64_activation_scheme scheme;
  moe64_weight_placement weight_on;
  uint8_t reserved[5];
  int64_t experts_total;  ///< 0: the stacks hold all experts; otherwise they hold a sub-range ...
  int64_t first_expert;   ///< ... that begins here
  const char* implementation;  ///< forces the grouped_gemm implementation, or NULL
} moe64_layer_desc;

static inline moe64_layer_desc moe64_layer_desc_init(void) {
  moe64_layer_desc desc;
  moe64_zero_args(&desc, sizeof desc);
  desc.gate_up.lora.scaling = 1.0F;
  desc.down.lora.scaling = 1.0F;
  desc.activation = moe64_activation_spec_init();
  return desc;
}

/// A layer that can be run any number of times. It copies the stacks and the implementation's name,
/// so the moe64_weights handles may be destroyed; the memory of weights, scales and biases stays
/// the caller's and must outlive it.
typedef struct moe64_layer moe64_layer;

/// *layer is the caller's, for moe64_layer_destroy. Pointers and enumerators are checked here; that
/// the projections fit each other and the device is checked by every call that uses the layer.
MOE64_API moe64_status moe64_layer_create(const moe64_layer_desc* desc, moe64_layer** layer);

/// Frees the handle, not the memory it looks at. NULL does nothing.
MOE64_API void moe64_layer_destroy(moe64_layer* layer);

/// What a projection of a layer looks at.
typedef struct moe64_projection_view {
  moe64_quantized parts[2];  ///< gate and up, or only the first; the second is then absent
  moe64_tensor bias[2];      ///< per part, or absent
} moe64_projection_view;

/// What a layer was made of; the memory of the tensors is the caller's own.
typedef struct moe64_layer_view {
  uint64_t struct_size;
  moe64_projection_view gate_up;
  moe64_projection_view down;
  moe64_activation_spec activation;
  moe64_compute_mode mode;
  moe64_activation_scheme scheme;
  moe64_weight_placement weight_on;
  uint8_t reserved[5];
  int64_t experts_total;
  int64_t first_expert;
} moe64_layer_view;

static inline moe64_layer_view moe64_layer_view_init(void) {
  moe64_layer_view view;
  moe64_zero_args(&view, sizeof view);
  return view;
}

/// *view = what the layer looks at, LoRA left out: the tensors of a layer that moe64_load_layer
/// made, for programs that keep them in structures of their own. MOE64_UNSUPPORTED for weights with
/// places, which a view has no room for.
MOE64_API moe64_status moe64_layer_look(const moe64_layer* layer, moe64_layer_view* view);

/// *mode = the mode that the layer runs in on `device` with x of type `io`; `reason` says why: at
/// most reason_bytes including the final NUL, cut where it is longer; NULL when reason_bytes is 0.
/// A mode that the formats rule out is MOE64_UNSUPPORTED.
MOE64_API moe64_status moe64_resolve_mode(const moe64_layer* layer, moe64_dtype io,
                                          moe64_device device, moe64_compute_mode* mode,
                                          char* reason, int64_t reason_bytes);

/// The extents of one call.
typedef struct moe64_layer_shape {
  int64_t tokens;
  int64_t top_k;
  moe64_dtype io;  ///< type of x, y and everything between: f32, bf16 or f16
  uint8_t reserved[7];
} moe64_layer_shape;

/// *bytes = memory that must survive from forward to backward: the plan and the gate_up output.
MOE64_API moe64_status moe64_saved_bytes(const moe64_layer* layer, const moe64_layer_shape* shape,
                                         moe64_device device, int64_t* bytes);

/// *bytes = scratch of forward. keeps_saved (flag) 0: forward gets no `saved` memory and keeps its
/// plan here too.
MOE64_API moe64_status moe64_forward_bytes(const moe64_layer* layer, const moe64_layer_shape* shape,
                                           uint8_t keeps_saved, moe64_device device,
                                           int64_t* bytes);

typedef struct moe64_forward_args {
  uint64_t struct_size;
  moe64_tensor x;           ///< [..., hidden] f32, bf16, f16
  moe64_tensor expert_ids;  ///< [tokens, top_k] int32 or int64 (or [..., top_k] like x)
  moe64_tensor weights;     ///< [tokens, top_k] f32, bf16, f16, or absent (1)
  int64_t capacity;         ///< most rows per expert; default -1: no limit
  moe64_tensor y;           ///< out: extents and type of x
  moe64_workspace saved;    ///< out: moe64_saved_bytes() when backward follows, or none
  moe64_workspace scratch;  ///< moe64_forward_bytes()
} moe64_forward_args;

static inline moe64_forward_args moe64_forward_args_init(void) {
  moe64_forward_args args;
  moe64_zero_args(&args, sizeof args);
  args.capacity = -1;
  return args;
}

/// Runs the layer. Writes y, saved and scratch.
MOE64_API moe64_status moe64_forward(const moe64_layer* layer, const moe64_forward_args* args,
                                     moe64_stream stream);

/// *plan = the plan that forward left in `saved`: counts of kept, skipped and dropped slots are in
/// its status.
MOE64_API moe64_status moe64_saved_plan(const moe64_layer* layer, const moe64_layer_shape* shape,
                                        const moe64_workspace* saved, moe64_routing_plan* plan);

/// Gradients of one projection; absent tensors are not computed. Gradients of quantised weights do
/// not exist: asking for one is MOE64_UNSUPPORTED.
typedef struct moe64_projection_gradients {
  moe64_tensor weights[2];  ///< out, per part [experts, part_rows, cols] f32, bf16, f16
  moe64_tensor bias[2];     ///< out, per part [experts, part_rows] f32, bf16, f16
  moe64_tensor lora_a;      ///< out [experts, rank, in] f32, bf16, f16
  moe64_tensor lora_b[2];   ///< out, per part [experts, part_rows, rank] f32, bf16, f16
} moe64_projection_gradients;

/// What backward shall compute.
typedef struct moe64_layer_gradients {
  uint64_t struct_size;
  moe64_tensor x;        ///< out [..., hidden], type of x
  moe64_tensor weights;  ///< out [tokens, top_k] f32: the slot weights
  moe64_projection_gradients gate_up;
  moe64_projection_gradients down;
} moe64_layer_gradients;

static inline moe64_layer_gradients moe64_layer_gradients_init(void) {
  moe64_layer_gradients gradients;
  moe64_zero_args(&gradients, sizeof gradients);
  return gradients;
}

/// *bytes = scratch of backward for these gradients.
MOE64_API moe64_status moe64_backward_bytes(const moe64_layer* layer,
                                            const moe64_layer_shape* shape,
                                            const moe64_layer_gradients* gradients,
                                            moe64_device device, int64_t* bytes);

/// Operands of backward. Weights are read as w8a16 whatever mode forward ran in.
typedef struct moe64_backward_args {
  uint64_t struct_size;
  moe64_tensor x;   ///< the x of forward
  moe64_tensor dy;  ///< [..., hidden], type of x
  int64_t top_k;
  moe64_workspace saved;    ///< from forward
  moe64_workspace scratch;  ///< moe64_backward_bytes()
  const moe64_layer_gradients* gradients;
} moe64_backward_args;

static inline moe64_backward_args moe64_backward_args_init(void) {
  moe64_backward_args args;
  moe64_zero_args(&args, sizeof args);
  return args;
}

/// Gradients of the layer. Writes the tensors of args->gradients and scratch.
MOE64_API moe64_status moe64_backward(const moe64_layer* layer, const moe64_backward_args* args,
                                      moe64_stream stream);

#ifdef __cplusplus
}
#endif
