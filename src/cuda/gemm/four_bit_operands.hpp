#pragma once

#include "cuda/kernels/gemm/sm90/mixed/gemm.hpp"
#include "moe64/error.hpp"
#include "moe64/quant.hpp"

/// Weights in 4 bits as `wgmma_decode` takes them.
namespace moe64::cuda::four_bits {

/// int4 or fp4.
[[nodiscard]] bool has(dtype type);
/// Scales of rows, or of groups of 16, 32, 64 or whole 128s along k.
[[nodiscard]] support takes_scales(quantized_view const& q);
[[nodiscard]] group_scales scales_of(quantized_view const& q);
/// sm90_mixed_parameters::four_bits
void describe(dtype type, std::uint32_t (&table)[4]);

}  // namespace moe64::cuda::four_bits
