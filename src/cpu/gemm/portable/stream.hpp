// Outputs that bypass the caches. Included once per target, after simd.hpp.

#if defined(MOE64_CPU_STREAM_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_STREAM_SIMD_HPP
#undef MOE64_CPU_STREAM_SIMD_HPP
#else
#define MOE64_CPU_STREAM_SIMD_HPP
#endif

#include "cpu/gemm/portable/codes.hpp"
#include "cpu/runtime/streaming.hpp"
#include "hwy/cache_control.h"

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// memcpy past the caches; end_streaming() before anyone else may read `to`.
HWY_INLINE void copy_streamed(std::uint8_t* to, std::uint8_t const* from, index_t bytes) {
#if HWY_TARGET == HWY_SCALAR
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
#else
  constexpr index_t line = 64;
  hn::ScalableTag<std::uint8_t> const tag;
  constexpr index_t step = hn::MaxLanes(tag);
  index_t const misplaced = static_cast<index_t>(reinterpret_cast<std::uintptr_t>(to) % line);
  index_t i = std::min(bytes, misplaced == 0 ? 0 : line - misplaced);
  if (i > 0) std::memcpy(to, from, static_cast<std::size_t>(i));
  for (; i + line <= bytes; i += line) {
    for (index_t part = 0; part < line; part += step) {
      hn::Stream(hn::LoadU(tag, from + i + part), tag, to + i + part);
    }
  }
  if (i < bytes) std::memcpy(to + i, from + i, static_cast<std::size_t>(bytes - i));
#endif
}

HWY_INLINE void end_streaming(bool streamed) {
  if (streamed) hwy::FlushStream();
}

/// Where the numbers of a loop over pairs go: written as usual, or past the caches when the loop
/// starts at a line. Only bf16 pairs fill whole lines at every width.
template <class Number>
HWY_INLINE bool can_stream_pairs([[maybe_unused]] void const* data) {
#if HWY_TARGET == HWY_SCALAR
  return false;
#else
  return std::is_same_v<Number, bf16_number> && reinterpret_cast<std::uintptr_t>(data) % 64 == 0;
#endif
}
template <class Number, bool Streamed>
HWY_INLINE void put_pair(lane_pair numbers, void* data, index_t i) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (Streamed && std::is_same_v<Number, bf16_number>) {
    hn::Repartition<std::uint16_t, i32_tag> const tag;
    hn::Stream(hn::BitCast(tag, bf16_pair_codes(numbers)), tag, at<std::uint16_t>(data, i));
    return;
  }
#endif
  store_pair<Number>(numbers, data, i);
}

/// store_run of at most run_length numbers, streamed if wanted and if they lie side by side.
inline void store_run(row_view const& row, index_t begin, index_t count, float const* in,
                      bool streamed) {
  index_t const size = bits(row.type) / 8;
  if (!streamed || row.stride != 1 || size == 0) return store_run(row, begin, count, in);
  alignas(64) std::uint8_t codes[run_length * sizeof(float)];
  store_run({codes, 0, 1, row.type}, 0, count, in);
  copy_streamed(static_cast<std::uint8_t*>(row.data) + (row.offset + begin) * size, codes,
                count * size);
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
