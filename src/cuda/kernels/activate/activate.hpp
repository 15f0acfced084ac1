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
  divisor row_vec8s;      ///< inter / 8
};

/// What the kernels of activate_backward read and write.
struct activate_backward_parameters {
  activation_spec spec;
  tensor_view gate, up, d_out;  ///< [rows, inter] f32, bf16, f16; up absent when not gated
  tensor_view row_to_slot;      ///< [rows] int64, or absent when d_out is not weighted
  tensor_view slot_weight;      ///< [rows] f32, likewise
  tensor_view live_rows;        ///< [1] int64, or absent
  tensor_view d_gate, d_up;     ///< [rows, inter] f32, bf16, f16; d_up absent when not gated
  divisor row_vec8s;            ///< inter / 8
};

/// Threads of a CTA, unless a kernel says otherwise.
inline constexpr int activate_threads = 256;

/// An element per thread at a time; any strides and types.
[[nodiscard]] kernel<activate_parameters> activate_reference_kernel(activation kind);
[[nodiscard]] kernel<activate_backward_parameters> activate_backward_reference_kernel(
    activation kind);

/// Rows of which a thread of activate_vectors_kernel takes a vec8 at a time.
inline constexpr int activate_rows_each = 2;

/// vec8 of operands that are all bf16 or all f16, as can_take_vec8() says.
[[nodiscard]] kernel<activate_parameters> activate_vectors_kernel(activation kind, dtype type);
[[nodiscard]] kernel<activate_backward_parameters> activate_backward_vectors_kernel(activation kind,
                                                                                    dtype type);

/// Entries of the table of gates (activation_table.cuh).
inline constexpr int gate_table_entries = 8192;
inline constexpr index_t gate_table_bytes = gate_table_entries * index_t{sizeof(float)};
/// gelu and gelu_glu of bf16 by that table; vec8 as above.
inline constexpr int gate_table_threads = 1024;
[[nodiscard]] kernel<activate_parameters> activate_table_kernel(activation kind);
/// Whether there are enough elements for the table to pay.
[[nodiscard]] constexpr bool takes_table(activation kind, dtype type, index_t elements) {
  bool const is_gelu = kind == activation::gelu_glu || kind == activation::gelu;
  return is_gelu && type == dtype::bf16 && elements >= (index_t{1} << 22);
}

}  // namespace moe64::cuda
