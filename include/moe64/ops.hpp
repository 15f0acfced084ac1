#pragma once

#include "moe64/device.hpp"
#include "moe64/export.hpp"
#include "moe64/quant.hpp"
#include "moe64/routing.hpp"
#include "moe64/tensor.hpp"

#include <cstdint>
#include <string_view>

/// The seven operations and their gradients. Each takes one struct of borrowed operands and a
/// stream, checks everything before it writes anything, and throws moe64::error with the names and
/// values of what was wrong. Rules that hold for all of them:
///
///  - Sums are taken in f32 in an order that depends only on their length; one rounding follows.
///  - "capacity" is an upper bound of the number of rows that the host knows: tokens * top_k. The
///    true number is expert_begin[experts]; rows past it are neither read nor written.
///  - `live_rows` [1] int64, where given, says the same of an operand that has no plan.
///  - Outputs must not overlap inputs, nor themselves.
///  - `implementation` forces one of those that `moe64 doctor` lists; empty takes the best.
namespace moe64 {

// ---- quantize ----------------------------------------------------------------------------------

/// Round x to codes and scales. For each block: scale = largest |x| / largest code, rounded to the
/// scale's type (e8m0: up to the next power of two, so that nothing saturates); code = x / scale
/// rounded to nearest even. A block of zeros gets scale 1. A block that holds NaN or infinity gets
/// a NaN scale and zero codes, so that it reads back as NaN as a whole. Its gradient is straight
/// through: pass dy on unchanged.
struct quantize_args {
  tensor_view x;               ///< [experts, rows, cols] or [rows, cols] f32, bf16, f16
  granularity layout;          ///< of the scales
  tensor_view values;          ///< out: extents of x, e4m3 e5m2 int8 int4 fp4
  tensor_view scales;          ///< out: the grid of `layout`, rank of x, f32 bf16 f16 e8m0 e4m3
  global_scale global = {};    ///< out: [experts] f32, for fp4 with e4m3 scales and only then
  tensor_view live_rows = {};  ///< [1] int64 or absent; needs rank 2 and scale row or group
  std::string_view implementation = {};
};
MOE64_API void quantize(quantize_args const& args, stream where);

/// Codes to numbers: one f32 product, one rounding to out's type.
struct dequantize_args {
  /// [experts, rows, cols], also plain (then it is a conversion), and with places.
  quantized_view q;
  tensor_view out;  ///< [experts, rows, cols] (or [rows, cols] when experts is 1) f32, bf16, f16
  std::string_view implementation = {};
};
MOE64_API void dequantize(dequantize_args const& args, stream where);

// ---- route -------------------------------------------------------------------------------------

enum class scoring : std::uint8_t {
  softmax = 0,  ///< softmax over all experts, then choose (Qwen3, Mixtral with renormalize)
  softmax_of_selected = 1,  ///< choose by logit, then softmax over the chosen (gpt-oss)
  sigmoid = 2,              ///< sigmoid of each logit, then choose (DeepSeek-V3, GLM, MiniMax)
};

enum class group_score : std::uint8_t {
  max = 0,       ///< best expert of the group (DeepSeek-V2)
  top2_sum = 1,  ///< sum of its two best experts (DeepSeek-V3)
};

struct route_options {
  scoring score = scoring::softmax;
  bool renormalize = false;   ///< divide the chosen weights by their sum (plus 1e-20)
  float scaling = 1.0F;       ///< factor on the weights, after renormalising
  index_t expert_groups = 1;  ///< experts are split evenly into this many groups ...
  index_t groups_kept = 1;    ///< ... of which this many are kept before choosing experts
  group_score group_by = group_score::top2_sum;
};

/// Logits to expert ids and weights. Choice is by score + selection_bias, best first, ties to the
/// lower id, NaN below everything; the weight is the score without the bias. Ids are always legal.
struct route_args {
  tensor_view logits;               ///< [tokens, experts] f32, bf16, f16
  tensor_view selection_bias = {};  ///< [experts] f32, or absent
  route_options options = {};
  tensor_view expert_ids;  ///< out: [tokens, top_k] int32 or int64
  tensor_view weights;     ///< out: [tokens, top_k] f32
  std::string_view implementation = {};
};
MOE64_API void route(route_args const& args, stream where);

/// Gradient of the weights with respect to the logits; the choice itself has none. Sentinel ids
/// contribute nothing.
struct route_backward_args {
  tensor_view logits;  ///< [tokens, experts] f32, bf16, f16
  route_options options = {};
  tensor_view expert_ids;  ///< [tokens, top_k] int32 or int64, as given by route
  tensor_view d_weights;   ///< [tokens, top_k] f32
  tensor_view d_logits;    ///< out: [tokens, experts] f32, bf16, f16
  std::string_view implementation = {};
};
MOE64_API void route_backward(route_backward_args const& args, stream where);

// ---- plan --------------------------------------------------------------------------------------

/// Expert ids to a routing plan. Ids -1 and experts_total mean "no expert here"; legal ids outside
/// [first_expert, first_expert + plan.experts) belong to other ranks; any other id is
/// errc::invalid_expert, naming the slot and the id. Duplicate ids in a token are legal: each slot
/// gets its row.
struct plan_args {
  tensor_view expert_ids = {};  ///< [tokens, top_k] int32 or int64; absent when a mask is given
  tensor_view expert_mask =
      {};                     ///< [tokens, experts_total] uint8, 1 = chosen; top_k = experts_total
  tensor_view weights = {};   ///< [tokens, top_k] f32, bf16, f16, or absent (every weight is 1)
  index_t experts_total = 0;  ///< ids are in [0, experts_total)
  index_t first_expert = 0;   ///< first expert of this plan's sub-range
  index_t capacity = -1;      ///< most rows per expert; further slots are dropped; -1: no limit
  routing_plan plan;          ///< out: from bind_plan
  workspace scratch = {};     ///< plan_scratch_bytes() of it
  std::string_view implementation = {};
};
MOE64_API void plan(plan_args const& args, stream where);
[[nodiscard]] MOE64_API index_t plan_scratch_bytes(index_t tokens, index_t top_k, index_t experts,
                                                   moe64::device where);

// ---- gather and combine ------------------------------------------------------------------------

/// rows[r] = x[token of row r], times the slot's weight if `weighted`. Any type; codes take their
/// scales along. With `quantized` the rows are quantised on the way: the bits are those of a gather
/// to rows of x's type and a quantize of them, without the memory between the two. fp4 with e4m3
/// scales is errc::unsupported there: its global scale needs all rows first.
struct gather_args {
  tensor_view x;            ///< [tokens, hidden], any type; with `quantized` f32, bf16, f16
  tensor_view scales = {};  ///< [tokens, grid_cols] of quantised x, or absent
  routing_plan plan;
  bool weighted = false;        ///< f32, bf16, f16 only: f32 product, one rounding
  tensor_view rows;             ///< out: [capacity, hidden], type of x, or codes if `quantized`
  tensor_view row_scales = {};  ///< out: [capacity, grid_cols], type of scales, or any scale type
  granularity quantized = {};   ///< row or group; none: rows are not quantised
  std::string_view implementation = {};
};
MOE64_API void gather(gather_args const& args, stream where);

/// y[token] = sum over k of rows[row of slot], times the slot's weight if `weighted`: in f32, in
/// slot order, rounded once. A slot without a row is not read and adds exactly nothing; a token
/// without rows becomes zero.
struct combine_args {
  quantized_view
      rows;  ///< [capacity, hidden] plain, or quantised with one scale per row or per group
  routing_plan plan;
  bool weighted = false;
  tensor_view y;  ///< out: [tokens, hidden] f32, bf16, f16
  std::string_view implementation = {};
};
MOE64_API void combine(combine_args const& args, stream where);

/// Gradient of the slot weights: d_weights[slot of row r] = dot(left[r], right[r]), plus
/// dot(bias_rows[r], bias[e]) if a bias is given; 0 for slots without a row.
struct slot_weight_gradient_args {
  tensor_view left;            ///< [capacity, n] f32, bf16, f16
  tensor_view right;           ///< [capacity, n] f32, bf16, f16
  tensor_view bias_rows = {};  ///< [capacity, m] f32, bf16, f16, or absent
  tensor_view bias = {};       ///< [experts, m] f32, bf16, f16, or absent
  routing_plan plan;
  tensor_view d_weights;  ///< out: [tokens, top_k] f32
  std::string_view implementation = {};
};
MOE64_API void slot_weight_gradient(slot_weight_gradient_args const& args, stream where);

// ---- grouped_gemm ------------------------------------------------------------------------------

/// A low-rank addend (LoRA): scaling * u times the same side of `weights` as the main product.
struct low_rank_term {
  tensor_view u = {};  ///< [capacity, rank] f32, bf16, f16
  weight_stack weights =
      {};  ///< plain; [experts, out, rank], or with transpose [experts, rank, in]
  float scaling = 1.0F;
};

/// y[r] = x[r] * W(e)^T + bias(e) + low_rank for every row r of expert e; with `transpose`,
/// y[r] = x[r] * W(e). The operands say the mode. Plain x by plain weights: native. Plain x by
/// quantised weights: each weight is dequantised to x's type first (w8a16). Quantised x, with a
/// scale per row or group: codes are multiplied, and sums over at most 128 columns that share both
/// scales are scaled and added in f32 (w8a8; plain weights count as codes with scale 1). Quantised
/// x with transpose is errc::unsupported.
struct grouped_gemm_args {
  quantized_view x;          ///< [capacity, cols of W] ([capacity, rows of W] with transpose)
  weight_stack weights;      ///< [experts, rows, cols], also with places
  tensor_view expert_begin;  ///< [experts + 1] int64, of the plan
  bool transpose = false;
  per_part bias =
      {};  ///< per part [experts, part_rows] f32 bf16 f16, or absent; not with transpose
  low_rank_term low_rank = {};  ///< u absent: none
  tensor_view y;  ///< out: [capacity, rows of W] ([capacity, cols of W]) f32, bf16, f16
  std::string_view implementation = {};
  /// A promise of the caller: all operands but x and low_rank (weights with their places, bias,
  /// expert_begin) were complete before the last call on this stream that was not activate. A
  /// kernel may then read them while that call, and an activate behind it, still compute x. False
  /// is always right, and waits for everything that was queued before. The bits are the same.
  bool operands_ready = false;
  /// Memory that the call may use until it has ended. With less than grouped_gemm_scratch_bytes it
  /// does without: the bits are the same, but kernels that schedule their tiles with it, for many
  /// rows of large experts, may take longer.
  workspace scratch = {};
};
MOE64_API void grouped_gemm(grouped_gemm_args const& args, stream where);
inline constexpr index_t grouped_gemm_scratch_bytes = 4096;

/// Weight gradient: d_weights(e) = scaling * sum over the rows of e of dy[r]^T x[r], and d_bias(e)
/// = sum of dy[r]. An expert without rows gets zeros.
struct grouped_gemm_wgrad_args {
  tensor_view dy;      ///< [capacity, parts * part_rows] f32, bf16, f16
  tensor_view x = {};  ///< [capacity, cols] f32, bf16, f16; absent when only the bias is asked for
  tensor_view expert_begin;  ///< [experts + 1] int64
  float scaling = 1.0F;      ///< factor on d_weights
  int parts = 1;             ///< 2: gate and up
  per_part d_weights = {};   ///< out, per part: [experts, part_rows, cols] f32 bf16 f16, or absent
  per_part d_bias = {};      ///< out, per part: [experts, part_rows] f32 bf16 f16, or absent
  std::string_view implementation = {};
};
MOE64_API void grouped_gemm_wgrad(grouped_gemm_wgrad_args const& args, stream where);

// ---- activate ----------------------------------------------------------------------------------

/// c(gate) = min(gate, limit), c(up) = clamp(up, -limit, limit).
enum class activation : std::uint8_t {
  silu_glu = 0,          ///< silu(gate) * up
  gelu_glu = 1,          ///< gelu(gate) * up, exact (erf)
  gelu_tanh_glu = 2,     ///< gelu(gate) * up, tanh form
  gptoss_glu = 3,        ///< c(gate) * sigmoid(alpha * c(gate)) * (c(up) + 1)
  clamped_silu_glu = 4,  ///< silu(c(gate)) * c(up) (DeepSeek-V4)
  silu = 5,              ///< not gated
  gelu = 6,              ///< not gated, exact
  relu2 = 7,             ///< not gated: max(x, 0)^2
  step_glu = 8,          ///< min(silu(gate), limit) * c(up) (Step-3.5, Ling-3)
};
inline constexpr activation last_activation = activation::step_glu;
[[nodiscard]] constexpr bool is_gated(activation kind) noexcept {
  return kind < activation::silu || kind == activation::step_glu;
}
/// Whether the kind reads activation_spec::limit.
[[nodiscard]] constexpr bool has_limit(activation kind) noexcept {
  return kind == activation::gptoss_glu || kind == activation::clamped_silu_glu ||
         kind == activation::step_glu;
}
[[nodiscard]] MOE64_API std::string_view name(activation kind) noexcept;

struct activation_spec {
  activation kind = activation::silu_glu;
  float alpha = 1.702F;  ///< gptoss_glu only
  float limit = 7.0F;    ///< of kinds that has_limit(); positive
};

/// out = activation(gate, up), computed in f32, rounded once. Halves of one tensor or interleaved
/// columns are both just strides of `gate` and `up`. With `quantized` the result is quantised on
/// the way: the bits are those of an activate to gate's type and a quantize of it, without the
/// memory between the two; as in gather.
struct activate_args {
  activation_spec activation = {};
  tensor_view gate;            ///< [rows, inter] f32, bf16, f16: the only input when not gated
  tensor_view up = {};         ///< [rows, inter] like gate, or absent when not gated
  tensor_view live_rows = {};  ///< [1] int64 or absent
  tensor_view out;             ///< out: [rows, inter] f32, bf16, f16, or codes if `quantized`
  tensor_view scales = {};  ///< out: [rows, grid_cols] any scale type if `quantized`, else absent
  granularity quantized = {};  ///< row or group; none: the result is not quantised
  std::string_view implementation = {};
};
MOE64_API void activate(activate_args const& args, stream where);

/// Gradients of gate and up. Where a clamp was active the gradient through it is zero. With
/// `weighted_by`, d_out of a row is first multiplied by the weight of its slot.
struct activate_backward_args {
  activation_spec activation = {};
  tensor_view gate;               ///< [rows, inter], as in forward
  tensor_view up = {};            ///< [rows, inter], or absent when not gated
  tensor_view d_out;              ///< [rows, inter] f32, bf16, f16
  routing_plan weighted_by = {};  ///< or absent
  tensor_view live_rows = {};     ///< [1] int64 or absent
  tensor_view d_gate;             ///< out: [rows, inter] f32, bf16, f16
  tensor_view d_up = {};          ///< out: [rows, inter], or absent when not gated
  std::string_view implementation = {};
};
MOE64_API void activate_backward(activate_backward_args const& args, stream where);

}  // namespace moe64
