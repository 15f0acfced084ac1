#pragma once

#include "cuda/kernels/quantize/quantize.hpp"
#include "moe64/error.hpp"
#include "moe64/quant.hpp"

/// Where codes and scales go, for quantize and for the operations that quantise their result, and
/// which kernels can write them.
namespace moe64::cuda {

/// Codes and scales, matrices or stacks, and the granularity of the scales.
struct coded {
  tensor_view values, scales;
  granularity layout;
};
[[nodiscard]] quantize_target target_of(coded const& to, global_scale const& global = {},
                                        tensor_view const& live_rows = {});

/// How much of a block the threads of a CTA hold in registers.
struct cta_capacity {
  index_t held;            ///< elements per thread
  index_t threads = 1024;  ///< at most
};

/// Whether the kernels named "groups" can write these scales, and those named "blocks". Columns
/// are can_take_vec16()'s affair.
[[nodiscard]] support can_make_groups(quantize_target const& target);
[[nodiscard]] support can_make_blocks(quantize_target const& target, cta_capacity const& cta);

/// Threads that hold one block, in whole warps.
[[nodiscard]] index_t threads_of_block(quantize_target const& target, cta_capacity const& cta);
/// Tiles of the "groups" kernels.
[[nodiscard]] index_t tiles_of_groups(quantize_target const& target);

}  // namespace moe64::cuda
