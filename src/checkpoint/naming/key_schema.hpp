#pragma once

#include "moe64/index.hpp"

#include <cstdint>
#include <optional>
#include <string_view>

namespace moe64::checkpoint {

/// How the tensors of routed experts are named: the module that the experts are in, and what their
/// matrices are called there. One tensor per expert and projection (proj, w123), or one stack per
/// projection of all experts of a layer. P is a prefix of the model, L the layer, E the expert.
enum class key_schema : std::uint8_t {
  mlp_proj,                ///< P.layers.L.mlp.experts.E.{gate,up,down}_proj.weight
  mlp_proj_packed,         ///< the same with .weight_packed
  block_sparse_moe_w123,   ///< P.layers.L.block_sparse_moe.experts.E.w{1,2,3}.weight
  ffn_w123,                ///< layers.L.ffn.experts.E.w{1,2,3}.weight, and mtp.L.ffn...
  mlp_stack,               ///< P.layers.L.mlp.experts.{gate_up,down}_proj: in either orientation
  mlp_stack_blocks,        ///< P.layers.L.mlp.experts.{gate_up,down}_proj_blocks
  feed_forward_proj,       ///< P.layers.L.feed_forward.experts.E.{gate,up,down}_proj.weight
  feed_forward_stack,      ///< P.layers.L.feed_forward.experts.{gate_up,down}_proj
  moe_stack,               ///< P.layers.L.moe.{gate,up,down}_proj.weight
  block_sparse_moe_stack,  ///< P.layers.L.block_sparse_moe.{input,output}_linear.weight
  experts_w123,            ///< layers.L.experts.E.w{1,2,3}.weight
  mtp_mlp_proj,            ///< mtp.layers.L.mlp.experts.E.{gate,up,down}_proj.weight
  feed_forward_w123,       ///< P.layers.L.feed_forward.experts.E.w{1,2,3}.weight
  mixer_proj,              ///< P.layers.L.mixer.experts.E.{up,down}_proj.weight: without a gate
  mlp_stack_w13,           ///< P.layers.L.mlp.experts.{w13,w2}_weight, gate and up rows alternating
};
inline constexpr int key_schema_count = 15;
[[nodiscard]] std::string_view name(key_schema schema) noexcept;  ///< "mlp_proj_packed"

/// One stack holds all experts of a layer.
[[nodiscard]] constexpr bool is_stacked(key_schema schema) noexcept {
  return schema == key_schema::mlp_stack || schema == key_schema::mlp_stack_blocks ||
         schema == key_schema::feed_forward_stack || schema == key_schema::moe_stack ||
         schema == key_schema::block_sparse_moe_stack || schema == key_schema::mlp_stack_w13;
}

/// Experts have gate and up; without a gate `up` is their only matrix before down.
[[nodiscard]] constexpr bool is_gated(key_schema schema) noexcept {
  return schema != key_schema::mixer_proj;
}

/// The schema whose names the scales and biases of `schema` have: those of packed values and of
/// blocks are named like any others.
[[nodiscard]] constexpr key_schema base_of(key_schema schema) noexcept {
  if (schema == key_schema::mlp_proj_packed) return key_schema::mlp_proj;
  return schema == key_schema::mlp_stack_blocks ? key_schema::mlp_stack : schema;
}

enum class projection_kind : std::uint8_t { gate, up, down, gate_up };
[[nodiscard]] std::string_view name(projection_kind kind) noexcept;

/// What a tensor is to its module, by the end of its name. In a stack the same words follow an
/// underscore: `weight_scale_inv` is `_scale_inv` there.
enum class tensor_part : std::uint8_t {
  weight,  ///< values, also `weight_packed` and, of stacks, `_blocks`
  weight_scale_inv,
  weight_scale,
  scale,
  scales,
  qscale_weight,
  weight_scale_2,       ///< global scale that multiplies
  weight_global_scale,  ///< global scale that divides
  activation_scale,     ///< input_scale, act_scale, qscale_act, ...: of activations
  weight_shape,
  bias,
  unknown,  ///< belongs to an expert, but means nothing here: weight_zero_point, ...
};
inline constexpr int tensor_part_count = 12;
[[nodiscard]] std::string_view name(tensor_part part) noexcept;

/// The parts that are the first scale of a weight.
[[nodiscard]] constexpr bool is_weight_scale(tensor_part part) noexcept {
  return part >= tensor_part::weight_scale_inv && part <= tensor_part::qscale_weight;
}

/// What the name of a tensor says.
struct tensor_key {
  key_schema schema = key_schema::mlp_proj;
  tensor_part part = tensor_part::unknown;
  projection_kind projection = projection_kind::gate;
  bool mtp = false;  ///< named as a layer of multi-token prediction
  index_t layer = 0;
  index_t expert = -1;      ///< -1: a stack of all experts
  std::string_view module;  ///< the name without what the part adds
};

/// Reads a name in one pass; empty when it is not of a routed expert. Numbers are decimal without
/// leading zeros and below 10^9.
[[nodiscard]] std::optional<tensor_key> match_key(std::string_view name) noexcept;

/// A module beside the routed experts: "X.weight_scale" is part weight_scale of module X. Names
/// that end in no known word are part `unknown`.
struct dense_key {
  tensor_part part = tensor_part::unknown;
  bool packed = false;  ///< `weight_packed`
  std::string_view module;
};
[[nodiscard]] dense_key match_dense_key(std::string_view name) noexcept;

}  // namespace moe64::checkpoint
