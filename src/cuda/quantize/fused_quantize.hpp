#pragma once

#include "backend.hpp"

/// gather and activate that quantise their result in the same pass: entries of the lists of
/// src/cuda/gather.cpp and src/cuda/activate.cpp, in the order of these lists.
namespace moe64::cuda {

[[nodiscard]] support takes_row_major(gather_args const& args);
void run_row_major(gather_args const& args, stream where);
[[nodiscard]] support takes_quantized_groups(gather_args const& args);
void run_quantized_groups(gather_args const& args, stream where);
[[nodiscard]] support takes_quantized_rows(gather_args const& args);
void run_quantized_rows(gather_args const& args, stream where);
void run_quantized_reference(gather_args const& args, stream where);
/// Of the implementations that do not quantise: a call without `quantized`.
[[nodiscard]] support is_copy(gather_args const& args);

/// Whether activations by a table of gates in shared memory are faster.
[[nodiscard]] support pays_table(activate_args const& args);
[[nodiscard]] support takes_row_major_table(activate_args const& args);
void run_row_major_table(activate_args const& args, stream where);
[[nodiscard]] support takes_row_major(activate_args const& args);
void run_row_major(activate_args const& args, stream where);
[[nodiscard]] support takes_quantized_groups(activate_args const& args);
void run_quantized_groups(activate_args const& args, stream where);
[[nodiscard]] support takes_quantized_rows(activate_args const& args);
void run_quantized_rows(activate_args const& args, stream where);
void run_quantized_reference(activate_args const& args, stream where);

}  // namespace moe64::cuda
