#pragma once

#include "moe64/c/handles.h"

/// The seven operations and their gradients. Each takes one struct of borrowed operands and a
/// stream, and checks everything before it writes anything. Rules that hold for all of them:
///  - Sums are taken in f32 in an order that depends only on the length of the sum; the result is
///    rounded once.
///  - "capacity" is an upper bound of the number of rows, known to the host: tokens * top_k. The
///    true number is expert_begin[experts]; rows past it are neither read nor written.
///  - `live_rows` [1] int64, where given, says the same of an operand that has no plan.
///  - Outputs must not overlap inputs, nor themselves. Flags are 0 or 1.
///  - `implementation` (NUL-terminated) forces one of the implementations that `moe64 doctor`
///    lists; NULL or "" takes the best.

#ifdef __cplusplus
extern "C" {
#endif

// ---- quantize -----------------------------------------------------------------------------------

typedef struct moe64_quantize_args {
  uint64_t struct_size;
  moe64_tensor x;            ///< [experts, rows, cols] or [rows, cols] f32, bf16, f16
  moe64_granularity layout;  ///< of the scales
  moe64_tensor values;       ///< out: extents of x, e4m3 e5m2 int8 int4 fp4
  moe64_tensor scales;  ///< out: [experts, grid_rows, grid_cols] or [grid_rows, grid_cols] f32 bf16
                        ///< f16 e8m0 e4m3
  moe64_global_scale global;  ///< out: [experts] f32, for fp4 with e4m3 scales and only then
  moe64_tensor
      live_rows;  ///< [1] int64 or absent; only for rank 2 with a scale per row or along rows
  const char* implementation;
} moe64_quantize_args;

static inline moe64_quantize_args moe64_quantize_args_init(void) {
  moe64_quantize_args args;
  moe64_zero_args(&args, sizeof args);
  return args;
}

/// Rounds x to codes and scales. Writes values, scales and global.
MOE64_API moe64_status moe64_quantize(const moe64_quantize_args* args, moe64_stream stream);

typedef struct moe64_dequantize_args {
  uint64_t struct_size;
  moe64_quantized q;  ///< [experts, rows, cols], also plain (then it is a conversion)
  moe64_tensor
      out;  ///< out: [experts, rows, cols] (or [rows, cols] when experts is 1) f32, bf16, f16
  const char* implementation;
} moe64_dequantize_args;

static inline moe64_dequantize_args moe64_dequantize_args_init(void) {
  moe64_dequantize_args args;
  moe64_zero_args(&args, sizeof args);
  return args;
}

/// Codes to numbers: one f32 product, one rounding. Writes out.
MOE64_API moe64_status moe64_dequantize(const moe64_dequantize_args* args, moe64_stream stream);

// ---- route --------------------------------------------------------------------------------------

typedef uint8_t moe64_scoring;
enum {
  MOE64_SOFTMAX = 0,              ///< softmax over all experts, then choose
  MOE64_SOFTMAX_OF_SELECTED = 1,  ///< choose by logit, then softmax over the chosen
  MOE64_SIGMOID = 2,              ///< sigmoid of each logit, then choose
};

typedef uint8_t moe64_group_score;
enum {
  MOE64_GROUP_MAX = 0,       ///< best expert of the group
  MOE64_GROUP_TOP2_SUM = 1,  ///< sum of its two best experts
};

typedef struct moe64_route_options {
  moe64_scoring score;
  uint8_t renormalize;         ///< flag: divide the chosen weights by their sum (plus 1e-20)
  moe64_group_score group_by;  ///< default MOE64_GROUP_TOP2_SUM
  uint8_t reserved;
  float scaling;          ///< factor on the weights, after renormalising; default 1
  int64_t expert_groups;  ///< experts are split evenly into this many groups; default 1
  int64_t groups_kept;    ///< this many of them are kept before choosing experts; default 1
} moe64_route_options;

static inline moe64_route_options moe64_route_options_init(void) {
  moe64_route_options options;
  memset(&options, 0, sizeof options);
  options.group_by = MOE64_GROUP_TOP2_SUM;
  options.scaling = 1.0F;
  options.expert_groups = 1;
  options.groups_kept = 1;
  return options;
}

typedef struct moe64_route_args {
  uint64_t struct_size;
  moe64_tensor logits;          ///< [tokens, experts] f32, bf16, f16
  moe64_tensor selection_bias;  ///< [experts] f32, or absent
  moe64_route_options options;
  moe64_tensor expert_ids;  ///< out: [tokens, top_k] int32 or int64
  moe64_tensor weights;     ///< out: [tokens, top_k] f32
  const char* implementation;
} moe64_route_args;

static inline moe64_route_args moe64_route_args_init(void) {
  moe64_route_args args;
  moe64_zero_args(&args, sizeof args);
  args.options = moe64_route_options_init();
  return args;
}

/// Logits to expert ids and weights. Writes expert_ids and weights.
MOE64_API moe64_status moe64_route(const moe64_route_args* args, moe64_stream stream);

typedef struct moe64_route_backward_args {
  uint64_t struct_size;
  moe64_tensor logits;  ///< [tokens, experts] f32, bf16, f16
  moe64_route_options options;
  moe64_tensor expert_ids;  ///< [tokens, top_k] int32 or int64, as given by moe64_route
  moe64_tensor d_weights;   ///< [tokens, top_k] f32
  moe64_tensor d_logits;    ///< out: [tokens, experts] f32, bf16, f16
  const char* implementation;
} moe64_route_backward_args;

static inline moe64_route_backward_args moe64_route_backward_args_init(void) {
  moe64_route_backward_args args;
  moe64_zero_args(&args, sizeof args);
  args.options = moe64_route_options_init();
  return args;
}

/// Gradient of the weights with respect to the logits. Writes d_logits.
MOE64_API moe64_status moe64_route_backward(const moe64_route_backward_args* args,
                                            moe64_stream stream);

// ---- plan ---------------------------------------------------------------------------------------

/// *bytes = exact bytes of a plan for these extents.
MOE64_API moe64_status moe64_plan_bytes(int64_t tokens, int64_t top_k, int64_t experts,
                                        int64_t* bytes);

/// *bytes = exact scratch of moe64_plan for these extents.
MOE64_API moe64_status moe64_plan_scratch_bytes(int64_t tokens, int64_t top_k, int64_t experts,
                                                moe64_device device, int64_t* bytes);

/// *plan = a plan whose arrays lie in `memory` (moe64_plan_bytes of it). The memory itself is not
/// written.
MOE64_API moe64_status moe64_bind_plan(const moe64_workspace* memory, int64_t tokens, int64_t top_k,
                                       int64_t experts, moe64_routing_plan* plan);

typedef struct moe64_plan_args {
  uint64_t struct_size;
  moe64_tensor expert_ids;   ///< [tokens, top_k] int32 or int64; absent when a mask is given
  moe64_tensor expert_mask;  ///< [tokens, experts_total] uint8, non-zero = chosen; then top_k is
                             ///< experts_total
  moe64_tensor weights;      ///< [tokens, top_k] f32, bf16, f16, or absent (every weight is 1)
  int64_t experts_total;     ///< ids are in [0, experts_total)
  int64_t first_expert;      ///< first expert of this plan's sub-range
  int64_t capacity;  ///< most rows per expert, later slots are dropped and counted; default -1: no
                     ///< limit
  moe64_routing_plan plan;  ///< out: from moe64_bind_plan
  moe64_workspace scratch;  ///< moe64_plan_scratch_bytes() of it
  const char* implementation;
} moe64_plan_args;

static inline moe64_plan_args moe64_plan_args_init(void) {
  moe64_plan_args args;
  moe64_zero_args(&args, sizeof args);
  args.capacity = -1;
  return args;
}

/// Expert ids to a routing plan: writes the arrays of args->plan. Ids -1 and experts_total mean "no
/// expert here"; legal ids outside the sub-range belong to other ranks; any other id is
/// MOE64_INVALID_EXPERT naming slot and id.
MOE64_API moe64_status moe64_plan(const moe64_plan_args* args, moe64_stream stream);

// ---- gather and combine -------------------------------------------------------------------------

typedef struct moe64_gather_args {
  uint64_t struct_size;
  moe64_tensor x;       ///< [tokens, hidden], any type
  moe64_tensor scales;  ///< [tokens, grid_cols] of quantised x, or absent
  moe64_routing_plan plan;
  uint8_t weighted;  ///< flag: times the slot's weight; f32, bf16, f16 only
  uint8_t reserved[7];
  moe64_tensor rows;        ///< out: [capacity, hidden], type of x; codes with `quantized`
  moe64_tensor row_scales;  ///< out: [capacity, grid_cols], type of scales; a scale type with
                            ///< `quantized`
  const char* implementation;
  moe64_granularity quantized;  ///< row or group: quantise the rows on the way, to the bits of
                                ///< moe64_gather and moe64_quantize; kind none (default): do not
} moe64_gather_args;

static inline moe64_gather_args moe64_gather_args_init(void) {
  moe64_gather_args args;
  moe64_zero_args(&args, sizeof args);
  return args;
}

/// rows[r] = x[token of row r]. Writes rows and row_scales.
MOE64_API moe64_status moe64_gather(const moe64_gather_args* args, moe64_stream stream);

typedef struct moe64_combine_args {
  uint64_t struct_size;
  moe64_quantized
      rows;  ///< [capacity, hidden] plain, or quantised with one scale per row or per group
  moe64_routing_plan plan;
  uint8_t weighted;  ///< flag: times the slot's weight
  uint8_t reserved[7];
  moe64_tensor y;  ///< out: [tokens, hidden] f32, bf16, f16
  const char* implementation;
} moe64_combine_args;

static inline moe64_combine_args moe64_combine_args_init(void) {
  moe64_combine_args args;
  moe64_zero_args(&args, sizeof args);
  return args;
}

/// y[token] = sum over k of rows[row of slot], in slot order; a token without rows becomes zero.
/// Writes y.
MOE64_API moe64_status moe64_combine(const moe64_combine_args* args, moe64_stream stream);

typedef struct moe64_slot_weight_gradient_args {
  uint64_t struct_size;
  moe64_tensor left;       ///< [capacity, n] f32, bf16, f16
  moe64_tensor right;      ///< [capacity, n] f32, bf16, f16
  moe64_tensor bias_rows;  ///< [capacity, m] f32, bf16, f16, or absent
  moe64_tensor bias;       ///< [experts, m] f32, bf16, f16, or absent
  moe64_routing_plan plan;
  moe64_tensor d_weights;  ///< out: [tokens, top_k] f32
  const char* implementation;
} moe64_slot_weight_gradient_args;

static inline moe64_slot_weight_gradient_args moe64_slot_weight_gradient_args_init(void) {
  moe64_slot_weight_gradient_args args;
  moe64_zero_args(&args, sizeof args);
  return args;
}

/// d_weights[slot of row r] = dot(left[r], right[r]) plus dot(bias_rows[r], bias[e]); 0 for slots
/// without a row.
MOE64_API moe64_status moe64_slot_weight_gradient(const moe64_slot_weight_gradient_args* args,
                                                  moe64_stream stream);

// ---- grouped_gemm -------------------------------------------------------------------------------

/// A low-rank addend (LoRA): scaling * u times the same side of `weights` as the main product.
typedef struct moe64_low_rank_term {
  moe64_tensor u;  ///< [capacity, rank] f32, bf16, f16; absent: no addend
  const moe64_weights*
      weights;    ///< plain; [experts, out, rank], or with transpose [experts, rank, in]; or NULL
  float scaling;  ///< default 1
  uint32_t reserved;
} moe64_low_rank_term;

/// What a scratch of moe64_grouped_gemm needs to be of use.
#define MOE64_GROUPED_GEMM_SCRATCH_BYTES 4096

typedef struct moe64_grouped_gemm_args {
  uint64_t struct_size;
  moe64_quantized x;             ///< [capacity, cols of W] ([capacity, rows of W] with transpose)
  const moe64_weights* weights;  ///< [experts, rows, cols]
  moe64_tensor expert_begin;     ///< [experts + 1] int64, of the plan
  uint8_t transpose;             ///< flag: y[r] = x[r] * W(e)
  uint8_t reserved[7];
  moe64_tensor
      bias[2];  ///< per part [experts, part_rows] f32 bf16 f16, or absent; not with transpose
  moe64_low_rank_term low_rank;
  moe64_tensor y;  ///< out: [capacity, rows of W] ([capacity, cols of W]) f32, bf16, f16
  const char* implementation;
  moe64_workspace scratch;  ///< MOE64_GROUPED_GEMM_SCRATCH_BYTES that the call may use; with less,
                            ///< kernels that schedule their tiles with it may take longer
} moe64_grouped_gemm_args;

static inline moe64_grouped_gemm_args moe64_grouped_gemm_args_init(void) {
  moe64_grouped_gemm_args args;
  moe64_zero_args(&args, sizeof args);
  args.low_rank.scaling = 1.0F;
  return args;
}

/// y[r] = x[r] * W(e)^T + bias(e) + low_rank for every row r of expert e. Writes y and scratch.
MOE64_API moe64_status moe64_grouped_gemm(const moe64_grouped_gemm_args* args, moe64_stream stream);

typedef struct moe64_grouped_gemm_wgrad_args {
  uint64_t struct_size;
  moe64_tensor dy;  ///< [capacity, parts * part_rows] f32, bf16, f16
  moe64_tensor x;   ///< [capacity, cols] f32, bf16, f16; absent when only the bias is asked for
  moe64_tensor expert_begin;  ///< [experts + 1] int64
  float scaling;              ///< factor on d_weights; default 1
  int32_t parts;              ///< default 1; 2: gate and up
  moe64_tensor d_weights[2];  ///< out, per part: [experts, part_rows, cols] f32 bf16 f16, or absent
  moe64_tensor d_bias[2];     ///< out, per part: [experts, part_rows] f32 bf16 f16, or absent
  const char* implementation;
} moe64_grouped_gemm_wgrad_args;

static inline moe64_grouped_gemm_wgrad_args moe64_grouped_gemm_wgrad_args_init(void) {
  moe64_grouped_gemm_wgrad_args args;
  moe64_zero_args(&args, sizeof args);
  args.scaling = 1.0F;
  args.parts = 1;
  return args;
}

/// d_weights(e) = scaling * sum over the rows of e of dy[r]^T x[r], d_bias(e) = sum of dy[r]; zeros
/// without rows. Writes d_weights and d_bias.
MOE64_API moe64_status moe64_grouped_gemm_wgrad(const moe64_grouped_gemm_wgrad_args* args,
                                                moe64_stream stream);

// ---- activate -----------------------------------------------------------------------------------

typedef uint8_t moe64_activation;
enum {
  MOE64_SILU_GLU = 0,       ///< silu(gate) * up
  MOE64_GELU_GLU = 1,       ///< gelu(gate) * up, exact (erf)
  MOE64_GELU_TANH_GLU = 2,  ///< gelu(gate) * up, tanh form
  MOE64_GPTOSS_GLU =
      3,  ///< g = min(gate, limit), u = clamp(up, +-limit): g * sigmoid(alpha * g) * (u + 1)
  MOE64_CLAMPED_SILU_GLU = 4,  ///< g = min(gate, limit), u = clamp(up, +-limit): silu(g) * u
  MOE64_SILU = 5,              ///< not gated
  MOE64_GELU = 6,              ///< not gated, exact
  MOE64_RELU2 = 7,             ///< not gated: max(x, 0)^2
  MOE64_STEP_GLU = 8,          ///< u = clamp(up, +-limit): min(silu(gate), limit) * u
};

typedef struct moe64_activation_spec {
  moe64_activation kind;
  uint8_t reserved[7];
  float alpha;  ///< gptoss_glu only; default 1.702
  float limit;  ///< gptoss_glu, clamped_silu_glu, step_glu only; positive; default 7
} moe64_activation_spec;

static inline moe64_activation_spec moe64_activation_spec_init(void) {
  moe64_activation_spec spec;
  memset(&spec, 0, sizeof spec);
  spec.alpha = 1.702F;
  spec.limit = 7.0F;
  return spec;
}

typedef struct moe64_activate_args {
  uint64_t struct_size;
  moe64_activation_spec activation;
  moe64_tensor gate;       ///< [rows, inter] f32, bf16, f16: the only input when not gated
  moe64_tensor up;         ///< [rows, inter] like gate, or absent when not gated
  moe64_tensor live_rows;  ///< [1] int64 or absent
  moe64_tensor out;        ///< out: [rows, inter] f32, bf16, f16; codes with `quantized`
  const char* implementation;
  moe64_tensor scales;          ///< out: [rows, grid_cols] with `quantized`, absent without
  moe64_granularity quantized;  ///< row or group: quantise the result on the way, to the bits of
                                ///< moe64_activate to gate's type and moe64_quantize; kind none
                                ///< (default): do not
} moe64_activate_args;

static inline moe64_activate_args moe64_activate_args_init(void) {
  moe64_activate_args args;
  moe64_zero_args(&args, sizeof args);
  args.activation = moe64_activation_spec_init();
  return args;
}

/// out = activation(gate, up), computed in f32, rounded once. Writes out.
MOE64_API moe64_status moe64_activate(const moe64_activate_args* args, moe64_stream stream);

typedef struct moe64_activate_backward_args {
  uint64_t struct_size;
  moe64_activation_spec activation;
  moe64_tensor gate;   ///< [rows, inter], as in forward
  moe64_tensor up;     ///< [rows, inter], or absent when not gated
  moe64_tensor d_out;  ///< [rows, inter] f32, bf16, f16
  const moe64_routing_plan*
      weighted_by;         ///< or NULL; d_out of a row is first multiplied by its slot's weight
  moe64_tensor live_rows;  ///< [1] int64 or absent
  moe64_tensor d_gate;     ///< out: [rows, inter] f32, bf16, f16
  moe64_tensor d_up;       ///< out: [rows, inter], or absent when not gated
  const char* implementation;
} moe64_activate_backward_args;

static inline moe64_activate_backward_args moe64_activate_backward_args_init(void) {
  moe64_activate_backward_args args;
  moe64_zero_args(&args, sizeof args);
  args.activation = moe64_activation_spec_init();
  return args;
}

/// Gradients of gate and up; zero through a clamp that was active. Writes d_gate and d_up.
MOE64_API moe64_status moe64_activate_backward(const moe64_activate_backward_args* args,
                                               moe64_stream stream);

#ifdef __cplusplus
}
#endif
