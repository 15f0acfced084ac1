#pragma once

#include "moe64/layer.hpp"
#include "moe64/problem.hpp"
#include "support/buffer.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace moe64::test {

/// Which numbers the tensors of a layer hold.
enum class layer_numbers {
  random,    ///< deviation 1; weights 1 / sqrt(fan in), so that every intermediate is of size 1
  integers,  ///< small integers and powers of two: with relu2 f32 holds every sum and product
  signs,     ///< so few and so small that bf16 holds them, too
  grid,      ///< multiples of 2^-8 in [-1, 1]: a step of 2^-14 is exact in f32
};

[[nodiscard]] constexpr bool is_exact(layer_numbers numbers) {
  return numbers == layer_numbers::integers || numbers == layer_numbers::signs;
}

enum class gate_up_storage { concatenated, interleaved, separate };

/// Label of an expert whose numbers are all NaN.
inline constexpr index_t poisoned_expert = -1;

/// A layer problem as data that can be rearranged. What a tensor holds follows from labels, not
/// from places: a token or an expert that is moved, copied or left out takes its numbers along.
struct layer_case {
  std::uint64_t seed = 1;
  layer_numbers numbers = layer_numbers::random;
  index_t hidden = 17;
  index_t inter = 9;
  index_t top_k = 2;
  std::vector<index_t> tokens;   ///< the label of each token
  std::vector<index_t> experts;  ///< the label of each expert of the model
  std::vector<index_t> ids;      ///< [tokens * top_k]
  std::vector<float> weights;    ///< [tokens * top_k], or empty: absent
  index_t capacity = -1;
  index_t first_expert = 0;  ///< the stacks hold `stored` experts from here on
  index_t stored = -1;       ///< -1: all

  weight_format weight = weight_format::f32;
  granularity scale;
  dtype scale_type = dtype::f32;
  bool doubled = false;  ///< codes twice, scales half as large: the same numbers
  activation_spec act;
  dtype io = dtype::f32;
  dtype parameter_type = dtype::f32;  ///< of biases, LoRA factors and all parameter gradients
  bool bias = false;
  index_t lora_gate_up = 0;  ///< rank, 0: none
  index_t lora_down = 0;
  weight_placement weight_on = weight_placement::output;
  compute_mode mode = compute_mode::automatic;
  activation_scheme scheme = activation_scheme::unstated;

  gate_up_storage storage = gate_up_storage::concatenated;
  bool in_first = false;  ///< weights, scales and their gradients lie [experts, in, out]
  index_t padding = 0;    ///< NaN elements behind every row and every matrix; even
  index_t step = 1;       ///< stride of columns, where the type is not packed
  index_t outer = 0;      ///< > 0: x is [outer, tokens / outer, hidden]
  dtype id_type = dtype::int64;
  dtype weight_type = dtype::f32;
  fence around = fence::canaries;  ///< of every tensor and workspace
  std::string implementation;      ///< forces the grouped GEMMs; empty: the best for each

  [[nodiscard]] index_t token_count() const { return std::ssize(tokens); }
  [[nodiscard]] index_t stored_experts() const { return stored < 0 ? std::ssize(experts) : stored; }
  [[nodiscard]] int parts() const { return is_gated(act.kind) ? 2 : 1; }
  [[nodiscard]] index_t& id(index_t token, index_t k) {
    return ids[static_cast<std::size_t>(token * top_k + k)];
  }

  /// Weights for all slots that suit the numbers.
  void weigh();
  /// Labels 0 .. tokens - 1 and 0 .. experts - 1, random ids (some twice in a token, a share of
  /// sentinels) and weights.
  void route(index_t token_count, index_t expert_count, double sentinels = 0.15);
};

/// Every field that is not the default, and the routing if it is short: what a failing test prints.
[[nodiscard]] std::string to_string(layer_case const& c);

/// A problem drawn from all combinations that the layer takes, small enough for many of them; its
/// implementation is drawn among those that take it.
[[nodiscard]] layer_case random_layer_case(std::uint64_t seed);

/// The same problem without rounding: relu2, f32, integers, weights that are powers of two. An
/// implementation that is forced is drawn anew, among those that take f32.
[[nodiscard]] layer_case exact(layer_case c);

/// Only the tokens at `places`, in that order, with their ids and weights.
[[nodiscard]] layer_case with_tokens(layer_case const& c, std::vector<index_t> const& places);

/// Expert `places[i]` moves to place i; ids follow. Places of poisoned_expert add an expert that
/// nobody chooses.
[[nodiscard]] layer_case with_experts(layer_case const& c, std::vector<index_t> const& places);

/// 0 .. count - 1 in random order.
[[nodiscard]] std::vector<index_t> random_order(std::uint64_t seed, index_t count);

}  // namespace moe64::test
