#pragma once

#include "cpu/operations.hpp"
#include "cpu/runtime/expert_ranges.hpp"

/// Grouped GEMMs with the bf16 arithmetic of the processor. x and the numbers that weights are read
/// as are bf16; accumulators are f32.
namespace moe64::cpu::bf16 {

/// What the bf16 implementations take: bf16 with adjacent columns by weights that are read as bf16.
[[nodiscard]] support takes(grouped_gemm_args const& args);
[[nodiscard]] support takes_gradient(grouped_gemm_wgrad_args const& args);

/// AVX512_BF16
void grouped_gemm(grouped_gemm_args const& args, stream where);
void grouped_gemm_wgrad(grouped_gemm_wgrad_args const& args, stream where);

/// The gradient of the bias alone, where it is asked for.
void compute_bias_gradient(grouped_gemm_wgrad_args const& args, stream where);

/// The two sides of a product: x W^T, lanes along the depth, and x W, one running sum per output.
void grouped_gemm_dots(grouped_gemm_args const& args, stream where);
void grouped_gemm_outer(grouped_gemm_args const& args, stream where);

/// x W^T for experts with at most few_rows rows: the outputs that make one task, 0 where such
/// experts are computed like all others, and one task.
inline constexpr index_t few_rows = 4;
[[nodiscard]] index_t outs_of_few(grouped_gemm_args const& args, stream where);
void compute_few(grouped_gemm_args const& args, tile_place const& task);

}  // namespace moe64::cpu::bf16

namespace moe64::cpu::amx {

/// AMX-BF16; takes what the others take.
void grouped_gemm(grouped_gemm_args const& args, stream where);
void grouped_gemm_wgrad(grouped_gemm_wgrad_args const& args, stream where);

}  // namespace moe64::cpu::amx
