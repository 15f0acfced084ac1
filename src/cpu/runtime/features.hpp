#pragma once

#include "moe64/error.hpp"

/// What this processor and its operating system can run: asked once, when first needed. Each answer
/// is yes, or no with the name of what is missing.
namespace moe64::cpu {

[[nodiscard]] support has_avx2();         ///< AVX2, FMA, F16C and BMI2
[[nodiscard]] support has_avx512();       ///< AVX-512 F, BW, CD, DQ, VL
[[nodiscard]] support has_avx512_vbmi();  ///< has_avx512 and byte permutes
[[nodiscard]] support has_avx512_vnni();  ///< has_avx512_vbmi and 8-bit dot products
[[nodiscard]] support has_avx512_bf16();  ///< has_avx512_vbmi and bf16 dot products
[[nodiscard]] support has_amx_bf16();     ///< has_avx512_bf16 and bf16 matrix tiles

/// `supports` of an implementation that needs such a processor and takes the calls that `Takes`
/// does.
template <support (*Has)(), class Args, support (*Takes)(Args const&)>
support where(Args const& args) {
  support const found = Has();
  return found ? Takes(args) : found;
}

}  // namespace moe64::cpu
