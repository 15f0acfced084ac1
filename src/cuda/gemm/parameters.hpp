#pragma once

#include "cuda/kernels/gemm/parameters.hpp"
#include "moe64/ops.hpp"

/// Calls as parameters of their kernels.
namespace moe64::cuda {

[[nodiscard]] matrix_operand operand_of(quantized_view const& q);
[[nodiscard]] grouped_gemm_parameters parameters_of(grouped_gemm_args const& args);
[[nodiscard]] grouped_gemm_wgrad_parameters parameters_of(grouped_gemm_wgrad_args const& args);

/// An upper bound of the tiles of a call, whatever expert_begin is.
[[nodiscard]] index_t most_tiles(grouped_gemm_args const& args, index_t row_tile, index_t out_tile);
/// Tiles of the weight gradients of all experts and parts.
[[nodiscard]] index_t gradient_tasks(grouped_gemm_wgrad_args const& args, index_t row_tile,
                                     index_t col_tile);

}  // namespace moe64::cuda
