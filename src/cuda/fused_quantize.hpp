#pragma once

#include "backend.hpp"
#include "cuda/kernels/quantize/quantize.hpp"

/// Operations that quantise their rows on the way, and what they share with quantize.
namespace moe64::cuda {

/// Where codes and scales go: matrices or stacks, and the granularity of the scales.
struct coded {
  tensor_view values, scales;
  granularity layout;
};
[[nodiscard]] quantize_target target_of(coded const& to, global_scale const& global = {},
                                        tensor_view const& live_rows = {});

/// Threads that hold one block of scales together: numbers each, and how many there may be.
struct team {
  index_t held;
  index_t most = 1024;
};

/// Whether the kernels named "groups" can write these scales, and those named "blocks". Columns
/// are can_take_vec16()'s affair.
[[nodiscard]] support can_make_groups(quantize_target const& target);
[[nodiscard]] support can_make_blocks(quantize_target const& target, team const& threads);

/// Threads that hold one block of scales.
[[nodiscard]] index_t threads_of_block(quantize_target const& target, team const& threads);
/// Tiles of the "groups" kernels.
[[nodiscard]] index_t tiles_of_groups(quantize_target const& target);

/// gather with `quantized`, in the order of the list of gather.
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
/// activate with `quantized`, likewise; row_major_table is row_major by a table of gates.
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
