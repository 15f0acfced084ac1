#pragma once

#include "moe64/tensor.hpp"

#include <cstdint>

namespace moe64::cuda {

/// Memory is slow to turn from writing to reading, and when a little reading goes with much writing
/// it turns often. So it is read in bursts: the first blocks of each group of blocks fetch what the
/// next group will read into the cache, where it waits among the writes.
inline constexpr std::uint32_t burst_bytes = 4U << 20;
inline constexpr std::uint32_t burst_fetchers = 256;     ///< blocks of a group that fetch
inline constexpr std::uint32_t fetch_bytes = 16U << 10;  ///< of one request

#if __CUDA_ARCH__ >= 900
/// Written rows leave the cache first; what was fetched stays until it has been read.
class fetcher {
 public:
  __device__ fetcher() {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(until_read_));
  }
  /// At a multiple of 16 bytes, so many.
  __device__ void operator()(std::uint8_t const* begin, std::uint32_t bytes) const {
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(begin),
                 "r"(bytes), "l"(until_read_)
                 : "memory");
  }

 private:
  std::uint64_t until_read_;
};
#endif

/// By all threads of every block of a grid whose blocks read `block_bytes` each of these bytes, one
/// after the other; all are multiples of 16.
__device__ inline void l2_prefetch([[maybe_unused]] void const* data,
                                   [[maybe_unused]] index_t bytes,
                                   [[maybe_unused]] index_t block_bytes,
                                   [[maybe_unused]] std::uint32_t burst = burst_bytes) {
#if __CUDA_ARCH__ >= 900
  if (block_bytes <= 0 || block_bytes > burst) return;
  auto const each = static_cast<std::uint32_t>(block_bytes);  // narrow-ok: at most a burst
  std::uint32_t const group = burst / each, in_group = blockIdx.x % group;
  // Of a group with few blocks each fetches more.
  std::uint32_t const fetchers = min(burst_fetchers, group);
  std::uint32_t const share = (group * each / fetchers + 15) / 16 * 16;
  if (in_group >= fetchers || threadIdx.x * fetch_bytes >= share) return;
  index_t const this_group = index_t{blockIdx.x - in_group} * each;
  index_t const next_group = this_group + index_t{group} * each;
  fetcher const fetch;
  // Nobody has fetched for the first group.
  for (index_t from = blockIdx.x < group ? this_group : next_group; from <= next_group;
       from += index_t{group} * each) {
    std::uint32_t const in_share = threadIdx.x * fetch_bytes;
    index_t const begin = from + index_t{in_group} * share + in_share;
    if (begin >= bytes) return;
    index_t const here = min(index_t{fetch_bytes}, index_t{share - in_share});
    auto const size = static_cast<std::uint32_t>(min(here, bytes - begin));  // narrow-ok: a fetch
    fetch(static_cast<std::uint8_t const*>(data) + begin, size);
  }
#endif
}

/// Bytes of a matrix of elements of `size` bytes that lies in one piece; else 0: nothing to fetch.
__device__ inline index_t adjacent_bytes(tensor_view const& x, index_t size) {
  bool const adjacent = x.stride[0] == x.extent[1] && x.stride[1] == 1;
  return adjacent ? x.extent[0] * x.extent[1] * size : 0;
}

}  // namespace moe64::cuda
