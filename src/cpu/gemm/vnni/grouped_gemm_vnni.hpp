#pragma once

#include "moe64/error.hpp"
#include "moe64/ops.hpp"

/// int8 x by int8 weights with 8-bit dot products. The accumulators of a segment are integers that
/// f32 holds exactly, so the bits are those of the portable implementations.
namespace moe64::cpu::vnni {

[[nodiscard]] support takes(grouped_gemm_args const& args);
void grouped_gemm(grouped_gemm_args const& args, stream where);  ///< needs has_avx512_vnni()

}  // namespace moe64::cpu::vnni
