#pragma once

#include "cuda/kernels/device/divisor.hpp"
#include "cuda/runtime/kernel.hpp"
#include "moe64/routing.hpp"

namespace moe64::cuda {

/// What the kernels of gather read and write: gather_args without what only the door looks at.
struct gather_parameters {
  tensor_view x, scales, rows, row_scales;
  routing_plan plan;
  bool weighted;
};

inline constexpr int gather_threads = 128;

/// One block per row at a time, element by element; any strides and types.
[[nodiscard]] kernel<gather_parameters> gather_reference_kernel();

/// The same for rows that are whole vectors of 16 bytes, in bytes.
struct gather_vectors_parameters {
  std::uint8_t const* from;
  std::uint8_t* to;
  std::int64_t const* slot_to_row;
  index_t from_step, to_step, slot_step;  ///< to the next row; slot_step: elements
  index_t tokens, top_k;
  divisor row_vectors;
  index_t ahead_bytes;  ///< of x, or 0 where it does not lie in one piece
  bool slots_ahead;     ///< slot_to_row can be fetched like x: adjacent, at a multiple of 16 bytes
  std::uint32_t burst_bytes;
  gather_parameters all;  ///< for the scales
};

/// One thread per token and vector reads it once for all of the token's rows.
[[nodiscard]] kernel<gather_vectors_parameters> gather_vectors_kernel(bool scaled, index_t top_k);
/// The same times the slot's weight; `type` f32, bf16 or f16, in whole eights.
[[nodiscard]] kernel<gather_parameters> gather_weighted_kernel(dtype type);

}  // namespace moe64::cuda
