#pragma once

#include "cuda/kernels/device/divisor.hpp"
#include "cuda/runtime/kernel.hpp"
#include "moe64/ops.hpp"

namespace moe64::cuda {

/// What the kernels of activate read and write.
struct activate_parameters {
  activation_spec spec;
  tensor_view gate, up;   ///< [rows, inter] f32, bf16, f16; up absent when not gated
  tensor_view live_rows;  ///< [1] int64, or absent
  tensor_view out;        ///< [rows, inter] f32, bf16, f16
  divisor row_eights;     ///< inter / 8
};

/// What the kernels of activate_backward read and write.
struct activate_backward_parameters {
  activation_spec spec;
  tensor_view gate, up, d_out;  ///< [rows, inter] f32, bf16, f16; up absent when not gated
  tensor_view row_to_slot;      ///< [rows] int64, or absent when d_out is not weighted
  tensor_view slot_weight;      ///< [rows] f32, likewise
  tensor_view live_rows;        ///< [1] int64, or absent
  tensor_view d_gate, d_up;     ///< [rows, inter] f32, bf16, f16; d_up absent when not gated
  divisor row_eights;           ///< inter / 8
};

/// Threads of a block of every kernel here.
inline constexpr int activate_threads = 256;

/// One number per thread at a time; any strides and types. A block takes `activate_threads` columns
/// of a row at a time.
[[nodiscard]] kernel<activate_parameters> activate_reference_kernel(activation kind);
[[nodiscard]] kernel<activate_backward_parameters> activate_backward_reference_kernel(
    activation kind);

/// Rows of which a thread of activate_vectors_kernel takes eight columns at a time.
inline constexpr int activate_rows_each = 2;

/// Eight numbers per thread at a time; all operands bf16 or all f16, columns adjacent, eight of
/// them aligned to 16 bytes, their number a multiple of 8.
[[nodiscard]] kernel<activate_parameters> activate_vectors_kernel(activation kind, dtype type);
[[nodiscard]] kernel<activate_backward_parameters> activate_backward_vectors_kernel(activation kind,
                                                                                    dtype type);

/// The table of gates in shared memory.
inline constexpr int gate_table_entries = 8192;
inline constexpr index_t gate_table_bytes = gate_table_entries * index_t{sizeof(float)};
/// gelu and gelu_glu of bf16 by that table, as the kernel above; a block per
/// multiprocessor.
inline constexpr int gate_table_threads = 1024;
[[nodiscard]] kernel<activate_parameters> activate_table_kernel(activation kind);
/// Whether there are enough numbers for the table to pay.
[[nodiscard]] constexpr bool takes_table(activation kind, dtype type, index_t numbers) {
  bool const is_gelu = kind == activation::gelu_glu || kind == activation::gelu;
  return is_gelu && type == dtype::bf16 && numbers >= (index_t{1} << 22);
}

}  // namespace moe64::cuda
