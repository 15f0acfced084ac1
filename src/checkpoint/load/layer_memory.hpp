#pragma once

#include "checkpoint/load/loadable.hpp"
#include "core/arena.hpp"
#include "moe64/layer.hpp"

namespace moe64::checkpoint {

/// Where the parts of a loaded layer lie. Gate and up of a fused tensor share their memory, scale
/// rows that are expanded excepted.
struct projection_memory {
  stack_memory stack;
  void* bias = nullptr;
};
struct layer_memory {
  projection_memory gate;
  projection_memory up;
  projection_memory down;
};

/// Cuts the memory of `range` out of the arena; without memory this only counts.
[[nodiscard]] layer_memory cut_layer(arena& from, expert_range const& range);

/// Bytes between the scales of two experts in memory; 0: all share one number.
[[nodiscard]] index_t scale_pitch(stack_format const& format);
/// Bytes of one expert's biases in the file, gate and up together where they are fused.
[[nodiscard]] index_t bias_slice_bytes(projection_entry const& entry);

/// The stacks as the layer takes them, over memory that has been filled.
[[nodiscard]] projection gate_up_of(expert_range const& range, layer_memory const& memory);
[[nodiscard]] projection down_of(expert_range const& range, layer_memory const& memory);

}  // namespace moe64::checkpoint
