#pragma once

#include "cuda/kernels/gemm/low_rank.hpp"
#include "cuda/runtime/launch.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"

/// grouped_gemm and its weight gradient by mma.sync, on tensor cores of sm_80 and up.
namespace moe64::cuda::sm80 {

/// Whether rows have 16 bits and begin at multiples of 16 bytes, as cp.async wants them; `argument`
/// names the matrix in the reason.
[[nodiscard]] support takes_rows(char const* argument, tensor_view const& matrix);

/// Low-rank terms of the type of x, or of bf16 with f32 weights.
[[nodiscard]] support takes_low_rank(grouped_gemm_args const& args);
/// Zeros without a low-rank term, or with one of rank 0.
[[nodiscard]] low_rank_operands low_rank_of(grouped_gemm_args const& args);

[[nodiscard]] support takes(grouped_gemm_args const& args);
void grouped_gemm(grouped_gemm_args const& args, stream where);

[[nodiscard]] support takes_gradient(grouped_gemm_wgrad_args const& args);
/// d_weights only.
void launch_gradient(launcher& on, grouped_gemm_wgrad_args const& args);

}  // namespace moe64::cuda::sm80
