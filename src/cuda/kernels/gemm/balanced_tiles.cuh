#pragma once

#include "cuda/kernels/gemm/expert_tiles.cuh"

/// Greedy scheduling of tiles with unequal rows, for persistent CTAs: a tile goes to the worker (a
/// cluster) that would be free first by a cost model. Every worker computes the same schedule;
/// there is no communication. By that model round-robin scheduling leaves the last worker 1 to 7 %
/// more than the mean, this half of that. (Dynamic scheduling takes them from a work counter
/// instead.)
namespace moe64::cuda {

/// Adjacent row tiles of one expert, in few registers: rows and experts are ints.
struct row_run {
  int expert;  ///< below 0: the end
  int row, rows, tiles;
};

/// The row tiles of all experts in order, up to `most` of an expert at a time; by one warp. For
/// cuts without a granule, of rows and experts that are ints even with one more tile past their end
/// (cuda/gemm/sm90/operands.cpp takes no others).
class row_tile_walk {
 public:
  __device__ row_tile_walk(tile_cut const& cut, int most) : cut_(cut), most_(most) { load(0); }

  [[nodiscard]] __device__ row_run next() {
    while (left_.tiles == 0) {
      if (with_rows_ == 0) {
        if (first_ + 32 >= cut_.experts()) return {-1, 0, 0, 0};
        load(first_ + 32);
        continue;
      }
      int const lane = __ffs(static_cast<int>(with_rows_)) - 1;  // narrow-ok: bits
      with_rows_ &= with_rows_ - 1;
      left_ = {first_ + lane, __shfl_sync(~0U, begin_, lane), __shfl_sync(~0U, rows_, lane), 0};
      left_.tiles = static_cast<int>(cut_.row_tiles(left_.rows));  // narrow-ok: no more than rows
    }
    row_run run = left_;
    if (run.tiles > most_) {
      run.tiles = most_;
      run.rows = most_ * static_cast<int>(cut_.row_tile);  // narrow-ok: below rows
    }
    left_.row += run.rows;
    left_.rows -= run.rows;
    left_.tiles -= run.tiles;
    return run;
  }

 private:
  /// Loads the ranges of 32 experts, one for each lane.
  __device__ void load(int first) {
    index_t const expert = first + lane_number();
    first_ = first;
    begin_ = rows_ = 0;
    if (expert < cut_.experts()) {
      index_t const begin = cut_.begin(expert);
      begin_ = static_cast<int>(begin);                    // narrow-ok: checked by the host
      rows_ = static_cast<int>(cut_.rows(expert, begin));  // narrow-ok: checked by the host
    }
    with_rows_ = __ballot_sync(~0U, rows_ > 0);
  }

  tile_cut const& cut_;
  int most_;
  int first_ = 0, begin_ = 0, rows_ = 0;  ///< of the experts of the lanes
  unsigned with_rows_ = 0;                ///< lanes whose experts are still ahead, and have rows
  row_run left_ = {};                     ///< of the current expert
};

/// The workers by the time until which the model has them busy; by one warp.
class greedy_queue {
 public:
  static constexpr int most_workers = 96;

  __device__ explicit greedy_queue(int workers) {
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      int const worker = i * 32 + lane_number();
      busy_[i] = worker < workers ? static_cast<std::uint32_t>(worker) : ~0U;  // narrow-ok: small
    }
  }
  /// The worker that gets the next tile, of cost `time`.
  [[nodiscard]] __device__ int take(std::uint32_t time) {
    std::uint32_t least = busy_[0];
#pragma unroll
    for (int i = 1; i < per_lane; ++i) least = min(least, busy_[i]);
    least = __reduce_min_sync(~0U, least);
    // Times are relative to the least, so any number of tiles does not overflow them.
    std::uint32_t const passed = least / units * units;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      if (busy_[i] == ~0U) continue;
      busy_[i] += (busy_[i] == least ? time * units : 0) - passed;
    }
    return static_cast<int>(least % units);  // narrow-ok: below most_workers
  }
  static constexpr std::uint32_t most_time = 1U << 20;

 private:
  static constexpr int per_lane = most_workers / 32;
  static constexpr std::uint32_t units = 128;  ///< busy_ is the time times this, plus the worker
  std::uint32_t busy_[per_lane];
};

}  // namespace moe64::cuda
