#pragma once

#include "cuda/kernels/read_ahead.cuh"
#include "cuda/kernels/usual.cuh"

/// Quantising by blocks that stay, one per multiprocessor, because they prepare something that must
/// serve for much: neighbours go to different blocks, so that what is left at the end is shared by
/// all, and what comes next is brought into the cache, also while the block prepares. A source also
/// has ahead(row, item, count), by one thread, for items of one row.
namespace moe64::cuda {

/// A scale per row: a row per team at a time, of as many warps as hold it. Teams wait for nobody
/// else; a block has whole teams, and of more than one warp at most 16.
class staying_rows {
 public:
  template <class Source>
  __device__ staying_rows(Source const& source, usual_target const& to)
      : to_(to),
        rows_(count_rows(to)),
        warps_((items_of_row(to) + 31) / 32),
        team_(threadIdx.x / 32 / warps_) {
    ahead(source, first());
  }

  template <class Source>
  __device__ void quantize(Source const& source) {
    std::uint32_t const step = blockDim.x / 32 / warps_ * gridDim.x;
    std::uint32_t const place = thread();
    bool const exists = 16 * Source::width * place < to_.cols;
    for (std::uint32_t row = first(); row < rows_; row += step) {
      ahead(source, row + step);
      auto const x = source.numbers(source.fetch(row, exists ? place : 0));
      block_factor const by = usual_factor<Source::type>(largest(exists ? largest_of(x) : 0));
      if (!exists) continue;
      if (place == 0) to_.scales[std::uint64_t{row} * to_.scale_step] = __uint_as_float(by.scale);
      store_codes(to_, row, place, codes_of(x, by));
    }
  }

 private:
  __device__ std::uint32_t first() const { return team_ * gridDim.x + blockIdx.x; }
  /// Of the team.
  __device__ std::uint32_t thread() const { return threadIdx.x - team_ * warps_ * 32; }

  template <class Source>
  __device__ void ahead(Source const& source, std::uint32_t row) const {
    if (thread() == 0 && row < rows_) source.ahead(row, 0, to_.cols / (16 * Source::width));
  }

  /// The largest of all threads of the team.
  __device__ std::uint32_t largest(std::uint32_t mine) {
    __shared__ std::uint32_t of_warp[2][32];
    std::uint32_t largest = __reduce_max_sync(0xffffffffU, mine);
    if (warps_ == 1) return largest;
    parity_ ^= 1;  // what is written next is the other half
    if (threadIdx.x % 32 == 0) of_warp[parity_][threadIdx.x / 32] = largest;
    asm volatile("barrier.sync %0, %1;" ::"r"(team_), "r"(warps_ * 32) : "memory");
    for (std::uint32_t warp = 0; warp < warps_; ++warp) {
      largest = max(largest, of_warp[parity_][team_ * warps_ + warp]);
    }
    return largest;
  }

  usual_target const& to_;
  std::uint32_t rows_, warps_, team_;
  int parity_ = 0;
};

}  // namespace moe64::cuda
