#pragma once

#include "cuda/kernels/activate/activate.hpp"
#include "cuda/kernels/quantize/fp8_row_major.hpp"

namespace moe64::cuda {

struct activate_row_major_parameters {
  activation_spec spec;
  row_major_rows gate, up;  ///< up without data when not gated
  row_major_target to;
};

/// Vectors of 16 elements in an item: fewer lanes hold a group, so that fewer shuffles reduce it,
/// where the computation counts.
inline constexpr int activate_row_major_width = 2;

[[nodiscard]] kernel<activate_row_major_parameters> activate_row_major_kernel(activation kind,
                                                                              dtype type);
/// A scale per row.
[[nodiscard]] kernel<activate_row_major_parameters> activate_row_major_rows_kernel(activation kind,
                                                                                   dtype type);

/// The same by a table of gates, as activate_table_kernel: persistent kernels, with shared memory
/// for the inputs that cp.async is loading.
inline constexpr int persistent_most_threads = 768;
[[nodiscard]] constexpr index_t persistent_item_bytes(activation kind) {
  return index_t{32} * activate_row_major_width * (is_gated(kind) ? 2 : 1);
}
[[nodiscard]] kernel<activate_row_major_parameters> activate_row_major_table_kernel(
    activation kind);
[[nodiscard]] kernel<activate_row_major_parameters> activate_row_major_table_rows_kernel(
    activation kind);

}  // namespace moe64::cuda
