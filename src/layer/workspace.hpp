#pragma once

#include "core/arena.hpp"
#include "moe64/error.hpp"
#include "moe64/layer.hpp"

/// Where everything between the input and the output of a layer lies. Each struct is cut from
/// caller's memory by one function that also answers the size query, so both agree to the byte.
/// capacity = tokens * top_k.
namespace moe64 {

/// Kept from forward to backward.
struct saved_buffers {
  routing_plan plan;
  tensor_view gate_up;  ///< [capacity, parts * inter] io
};

/// Codes and scales of activations (w8a8).
struct code_buffers {
  tensor_view values;  ///< [rows, cols] e4m3 or int8
  tensor_view scales;  ///< [rows, grid_cols] f32
  granularity layout;

  [[nodiscard]] quantized_view view() const {
    return quantized_view::scaled(values, scales, layout);
  }
};

struct forward_buffers {
  tensor_view scratch;       ///< [bytes] uint8: of plan, then of each product
  tensor_view rows;          ///< [capacity, hidden] io: gathered x, later the output of down
  tensor_view activated;     ///< [capacity, inter] io; w8a8: only where LoRA needs it
  tensor_view low_rank;      ///< [capacity, largest rank] io, when there is LoRA
  code_buffers x_codes;      ///< [tokens, hidden], w8a8 unless gather makes codes
  code_buffers row_codes;    ///< [capacity, hidden], w8a8
  code_buffers inner_codes;  ///< [capacity, inter], w8a8
  tensor_view counters;      ///< [bytes] uint8, where the backend may fuse the layer
};

struct backward_buffers {
  tensor_view dy_rows;     ///< [capacity, hidden] io, later the gradient of the gathered x
  tensor_view x_rows;      ///< [capacity, hidden] io
  tensor_view activated;   ///< [capacity, inter] io
  tensor_view d_inner;     ///< [capacity, inter] io
  tensor_view d_gate_up;   ///< [capacity, parts * inter] io
  tensor_view low_rank;    ///< [capacity, largest rank] io: what enters B
  tensor_view d_low_rank;  ///< [capacity, largest rank] io: its gradient
};

/// What a backward call must compute, from the gradients it is asked for.
struct backward_needs {
  bool slot_weights_output = false;  ///< slot weights, applied to the output
  bool slot_weights_input = false;   ///< slot weights, applied to the input
  bool x = false;
  bool gate_up_parameters = false;
  bool down_parameters = false;

  [[nodiscard]] bool x_rows() const { return gate_up_parameters || slot_weights_input; }
  [[nodiscard]] bool activated() const { return down_parameters || slot_weights_output; }
  [[nodiscard]] bool d_rows() const { return x || slot_weights_input; }
  [[nodiscard]] bool d_gate_up() const { return d_rows() || gate_up_parameters; }
};
[[nodiscard]] backward_needs needs_of(layer_desc const& layer, layer_gradients const& gradients);

/// Whether x becomes codes while it is gathered (w8a8), and if not, why it does before. With the
/// weight on the input every row has codes of its own; else the backend says what moves less.
[[nodiscard]] support quantizes_in_gather(layer_desc const& layer, dtype io, moe64::device where);

[[nodiscard]] saved_buffers cut_saved(arena& memory, layer_desc const& layer,
                                      layer_shape const& shape);
[[nodiscard]] forward_buffers cut_forward(arena& memory, layer_desc const& layer,
                                          layer_shape const& shape, compute_mode mode,
                                          moe64::device where);
/// What forward_bytes answers once the mode is known.
[[nodiscard]] index_t forward_bytes_in(compute_mode mode, layer_desc const& layer,
                                       layer_shape const& shape, bool keeps_saved,
                                       moe64::device where);
[[nodiscard]] backward_buffers cut_backward(arena& memory, layer_desc const& layer,
                                            layer_shape const& shape, backward_needs const& needs);

}  // namespace moe64
