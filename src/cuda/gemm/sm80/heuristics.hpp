#pragma once

#include "cuda/gemm/tile_rule.hpp"
#include "cuda/kernels/gemm/sm80/gemm.hpp"
#include "cuda/runtime/launch.hpp"

/// Which tile of sm80_mma a call gets, and why: a table for each kind of operands.
namespace moe64::cuda::sm80 {

using tile_rule = cuda::tile_rule<mma_tile>;

/// The tables: of the rules that take a call, and whose tile fits the shared memory of the device,
/// the first one counts. The last takes every call and fits every device.
[[nodiscard]] std::span<tile_rule const> gemm_tiles(mma_weights weights);
[[nodiscard]] std::span<tile_rule const> wgrad_tiles();

/// The tile of the rule that a call falls under; MOE64_VERBOSE=2 prints it.
[[nodiscard]] mma_tile choose_tile(launcher const& on, std::span<tile_rule const> rules,
                                   gemm_extents const& call, bool quantized);

}  // namespace moe64::cuda::sm80
