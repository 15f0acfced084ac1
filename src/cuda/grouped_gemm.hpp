#pragma once

#include "cuda/kernels/grouped_gemm.hpp"
#include "moe64/ops.hpp"

/// Calls as their kernels see them.
namespace moe64::cuda {

[[nodiscard]] matrix_operand operand_of(quantized_view const& q);
[[nodiscard]] grouped_gemm_parameters parameters_of(grouped_gemm_args const& args);
[[nodiscard]] grouped_gemm_wgrad_parameters parameters_of(grouped_gemm_wgrad_args const& args);

}  // namespace moe64::cuda
