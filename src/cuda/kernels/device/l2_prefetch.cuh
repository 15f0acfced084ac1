#pragma once

#include "moe64/tensor.hpp"

#include <cstdint>

namespace moe64::cuda {

/// DRAM is slow to switch between writing and reading, and where few reads go with many writes it
/// switches often. So reads come in bursts: of every wave of CTAs the first ones prefetch to L2
/// what the next wave will read.
inline constexpr std::uint32_t burst_bytes = 4U << 20;
inline constexpr std::uint32_t burst_fetchers = 256;     ///< CTAs of a wave that prefetch
inline constexpr std::uint32_t fetch_bytes = 16U << 10;  ///< of one prefetch instruction

#if __CUDA_ARCH__ >= 900
/// evict_last: what was prefetched stays in L2 until it has been read, written rows leave it first.
class fetcher {
 public:
  __device__ fetcher() {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(until_read_));
  }
  /// Address and size are multiples of 16 bytes.
  __device__ void operator()(std::uint8_t const* begin, std::uint32_t bytes) const {
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(begin),
                 "r"(bytes), "l"(until_read_)
                 : "memory");
  }

 private:
  std::uint64_t until_read_;
};
#endif

/// By all threads of every CTA of a grid whose CTAs read `cta_bytes` each of `data`, one after the
/// other; all sizes are multiples of 16.
__device__ inline void l2_prefetch([[maybe_unused]] void const* data,
                                   [[maybe_unused]] index_t bytes,
                                   [[maybe_unused]] index_t cta_bytes,
                                   [[maybe_unused]] std::uint32_t burst = burst_bytes) {
#if __CUDA_ARCH__ >= 900
  if (cta_bytes <= 0 || cta_bytes > burst) return;
  auto const each = static_cast<std::uint32_t>(cta_bytes);  // narrow-ok: at most a burst
  std::uint32_t const wave = burst / each, in_wave = blockIdx.x % wave;
  // Of a wave with few CTAs each fetches more.
  std::uint32_t const fetchers = min(burst_fetchers, wave);
  std::uint32_t const share = (wave * each / fetchers + 15) / 16 * 16;
  if (in_wave >= fetchers || threadIdx.x * fetch_bytes >= share) return;
  index_t const this_wave = index_t{blockIdx.x - in_wave} * each;
  index_t const next_wave = this_wave + index_t{wave} * each;
  fetcher const fetch;
  // Nothing was prefetched for the first wave.
  for (index_t from = blockIdx.x < wave ? this_wave : next_wave; from <= next_wave;
       from += index_t{wave} * each) {
    std::uint32_t const in_share = threadIdx.x * fetch_bytes;
    index_t const begin = from + index_t{in_wave} * share + in_share;
    if (begin >= bytes) return;
    index_t const here = min(index_t{fetch_bytes}, index_t{share - in_share});
    auto const size = static_cast<std::uint32_t>(min(here, bytes - begin));  // narrow-ok: a fetch
    fetch(static_cast<std::uint8_t const*>(data) + begin, size);
  }
#endif
}

/// Bytes of a contiguous matrix of elements of `size` bytes; else 0: nothing to prefetch.
__device__ inline index_t contiguous_bytes(tensor_view const& x, index_t size) {
  bool const contiguous = x.stride[0] == x.extent[1] && x.stride[1] == 1;
  return contiguous ? x.extent[0] * x.extent[1] * size : 0;
}

}  // namespace moe64::cuda
