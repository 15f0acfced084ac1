#pragma once

#include "hwy/base.h"

#include <cstddef>
#include <immintrin.h>
#include <utility>

/// Code between MOE64_BEGIN_AVX512_BF16 and MOE64_END_AVX512_BF16 is compiled for processors with
/// has_avx512_bf16, whatever the file is compiled for. Include everything before: an inline
/// function of another header that is compiled in here could be the one that the linker keeps for
/// all.
#define MOE64_BEGIN_AVX512_BF16 \
  HWY_PUSH_ATTRIBUTES(          \
      "avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512bf16")
#define MOE64_END_AVX512_BF16 HWY_POP_ATTRIBUTES
/// The same without bf16 arithmetic, for processors with has_avx512_vbmi.
#define MOE64_BEGIN_AVX512_VBMI \
  HWY_PUSH_ATTRIBUTES(          \
      "avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi")
#define MOE64_END_AVX512_VBMI HWY_POP_ATTRIBUTES
/// With 8-bit dot products, for processors with has_avx512_vnni.
#define MOE64_BEGIN_AVX512_VNNI \
  HWY_PUSH_ATTRIBUTES(          \
      "avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vnni")
#define MOE64_END_AVX512_VNNI HWY_POP_ATTRIBUTES

/// A lambda that is inlined wherever it is called.
#define MOE64_INLINE __attribute__((always_inline))

MOE64_BEGIN_AVX512_BF16

namespace moe64::cpu::bf16 {

/// body(0), body(1), ... with the number as a constant: arrays that are indexed by it stay in
/// registers, which compilers do not promise for loops.
template <std::size_t Count, class Body>
[[gnu::always_inline]] inline void repeat(Body const& body) {
  auto const each = [&]<std::size_t... I>(std::index_sequence<I...>) MOE64_INLINE {
    (body(std::integral_constant<std::size_t, I>{}), ...);
  };
  each(std::make_index_sequence<Count>{});
}

}  // namespace moe64::cpu::bf16

MOE64_END_AVX512_BF16
