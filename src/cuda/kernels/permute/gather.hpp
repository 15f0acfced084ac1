#pragma once

#include "cuda/kernels/device/divisor.hpp"
#include "cuda/runtime/kernel.hpp"
#include "moe64/routing.hpp"

namespace moe64::cuda {

/// What the kernels of gather read and write: gather_args without what only the door looks at.
struct gather_parameters {
  tensor_view x, scales;         ///< [tokens, cols] and [tokens, groups], or absent
  tensor_view rows, row_scales;  ///< [capacity, cols] and [capacity, groups], or absent
  routing_plan plan;
  bool weighted;
};

inline constexpr int gather_threads = 128;

/// A CTA per row at a time; any strides and types.
[[nodiscard]] kernel<gather_parameters> gather_reference_kernel();

/// Rows that are whole vectors of 16 bytes.
struct gather_vectors_parameters {
  std::uint8_t const* from;
  std::uint8_t* to;
  std::int64_t const* slot_to_row;
  index_t from_step, to_step;  ///< bytes to the next row
  index_t slot_step;           ///< elements
  index_t tokens, top_k;
  divisor row_vectors;
  index_t prefetch_bytes;  ///< of x, or 0 where it is not contiguous
  bool prefetch_slots;     ///< slot_to_row, too: contiguous, at a multiple of 16 bytes
  std::uint32_t burst_bytes;
  gather_parameters all;  ///< for the scales
};

/// A thread per token and vector, which it loads once for all rows of the token.
[[nodiscard]] kernel<gather_vectors_parameters> gather_vectors_kernel(bool scaled, index_t top_k);
/// The same times the slot's weight; `type` f32, bf16 or f16, in vec8s.
[[nodiscard]] kernel<gather_parameters> gather_weighted_kernel(dtype type);

}  // namespace moe64::cuda
