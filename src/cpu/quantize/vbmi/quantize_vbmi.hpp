#pragma once

#include "cpu/operations.hpp"

namespace moe64::cpu::bf16 {

/// bf16 to 8-bit floats, at least 512 numbers to a scale; needs has_avx512_vbmi.
[[nodiscard]] support takes_table(quantize_args const& args);
void quantize_by_table(quantize_args const& args, stream where);

}  // namespace moe64::cpu::bf16
