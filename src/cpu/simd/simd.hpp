// Include in place of hwy/highway.h, after defining HWY_TARGET_INCLUDE: compiles the file once for
// each instruction set that moe64 serves. Code between HWY_BEFORE_NAMESPACE() and
// HWY_AFTER_NAMESPACE() goes to namespace moe64::cpu::HWY_NAMESPACE; widths.hpp makes its functions
// entries of an implementation list. Highway's own dispatch is not used: the list is the dispatch,
// so that every width has a name and tests can reach it, and Highway is headers alone.
//
// Every width must give the same bits: sums have a fixed number of lanes (dot.hpp), and products
// that are added are fused everywhere (fused_multiply_add) or nowhere.

#ifndef HWY_COMPILE_ALL_ATTAINABLE
#define HWY_COMPILE_ALL_ATTAINABLE
// Older vector units have no fused multiply-add, other architectures were never tried: both take
// the scalar code.
#define HWY_BROKEN_EMU128 1
#define HWY_DISABLED_TARGETS                                                          \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_NEON | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | \
   HWY_SVE2_128 | HWY_RVV)
#endif

#include "hwy/foreach_target.h"
// after foreach_target.h
#include "hwy/highway.h"

#include <cmath>

// Included once per target, not once per file.
#if defined(MOE64_CPU_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_SIMD_HPP
#undef MOE64_CPU_SIMD_HPP
#else
#define MOE64_CPU_SIMD_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// a * b + c with one rounding, on every target.
template <class Vector>
HWY_INLINE Vector fused_multiply_add(Vector a, Vector b, Vector c) {
#if HWY_TARGET == HWY_SCALAR
  return Vector(std::fma(a.raw, b.raw, c.raw));
#else
  return hn::MulAdd(a, b, c);
#endif
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
