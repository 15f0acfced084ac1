#pragma once

#include "cpu/operations.hpp"

namespace moe64::cpu::bf16 {

/// 8-bit floats to bf16, at least 64 columns to a scale; needs has_avx512_vbmi.
[[nodiscard]] support takes_table(dequantize_args const& args);
void dequantize_by_table(dequantize_args const& args, stream where);

}  // namespace moe64::cpu::bf16
