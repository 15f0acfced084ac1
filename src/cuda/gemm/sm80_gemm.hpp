#pragma once

#include "cuda/kernels/gemm/sm80/gemm.hpp"
#include "cuda/runtime/launch.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"

/// grouped_gemm and its weight gradient on tensor cores of sm_80 and up.
namespace moe64::cuda::sm80 {

/// 16-bit rows whose 16-byte pieces can be copied: the reason why not, or nothing.
[[nodiscard]] support takes_rows(char const* argument, tensor_view const& matrix);

/// A low-rank term of the type of x, or with f32 weights.
[[nodiscard]] support takes_low_rank(grouped_gemm_args const& args);
/// Without one, or of rank 0: zeros.
[[nodiscard]] low_rank_operands low_rank_of(grouped_gemm_args const& args);

[[nodiscard]] support takes(grouped_gemm_args const& args);
void grouped_gemm(grouped_gemm_args const& args, stream where);

[[nodiscard]] support takes_gradient(grouped_gemm_wgrad_args const& args);
/// d_weights only.
void launch_gradient(launcher& on, grouped_gemm_wgrad_args const& args);

/// The largest tile of at most `wanted` rows whose shared memory the device has.
[[nodiscard]] mma_size size_that_fits(launcher const& on, mma_size wanted, codes_kind codes);

}  // namespace moe64::cuda::sm80
