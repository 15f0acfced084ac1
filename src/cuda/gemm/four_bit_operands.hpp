#pragma once

#include "cuda/kernels/gemm/sm90/mixed/gemm.hpp"
#include "moe64/error.hpp"
#include "moe64/quant.hpp"

/// 4-bit weights as sm90_w4a16 takes them.
namespace moe64::cuda::sm90_mixed {

/// int4 or fp4.
[[nodiscard]] bool is_w4(dtype type);
/// Scales of rows, or of groups of 16, 32, 64 or whole 128s along k.
[[nodiscard]] support takes_group_scales(quantized_view const& q);
[[nodiscard]] group_scales group_scales_of(quantized_view const& q);
/// The upper bytes of all codes as f16: sm90_mixed_parameters::f16_upper_bytes.
void describe_codes(dtype type, std::uint32_t (&table)[4]);

}  // namespace moe64::cuda::sm90_mixed
