#pragma once

#include "cuda/kernels/device/number.cuh"
#include "cuda/kernels/device/thread_index.cuh"

/// The tiles of all experts of a grouped GEMM numbered in one row, on the device: no block knows
/// more than expert_begin, and the host knows nothing of it.
namespace moe64::cuda {

/// How the rows of an expert and its outputs are cut.
struct tile_cut {
  tensor_view expert_begin;  ///< [experts + 1] int64
  index_t capacity;          ///< rows of the operands: no range reaches past them
  index_t row_tile;          ///< rows of a tile
  index_t out_tiles;         ///< tiles of outputs
  /// 0: tiles of an expert are row_tile high, the last one has the rest. Otherwise they are about
  /// equally high, in multiples of this, which divides row_tile.
  index_t granule = 0;
  index_t more = 0;  ///< rows that the last tile of an expert may have beyond row_tile
  /// Row tiles that are taken together, so that tiles in flight share rows and weights evenly.
  static constexpr index_t row_group = 16;

  [[nodiscard]] __device__ index_t experts() const { return expert_begin.extent[0] - 1; }
  /// A range that is none (the host cannot look) never leads outside of the operands.
  [[nodiscard]] __device__ index_t begin(index_t expert) const {
    // Not from the first-level cache: the kernel may have begun early (early.cuh).
    index_t const row = __ldcg(&element<index_t const>(expert_begin, expert));
    return row < 0 ? 0 : row > capacity ? capacity : row;
  }
  /// Of an expert that begins there.
  [[nodiscard]] __device__ index_t rows(index_t expert, index_t first) const {
    index_t const count = begin(expert + 1) - first;
    return count < 0 ? 0 : count;
  }
  [[nodiscard]] __device__ index_t row_tiles(index_t rows) const {
    return rows > more ? ceil_div(rows - more, row_tile) : rows > 0 ? 1 : 0;
  }
  [[nodiscard]] __device__ index_t tiles(index_t expert) const {
    return row_tiles(rows(expert, begin(expert))) * out_tiles;
  }
  /// Rows of each tile of an expert that has `rows` of them, but the last.
  [[nodiscard]] __device__ index_t step(index_t rows, index_t row_tiles) const {
    if (granule == 0 || row_tiles == 0) return row_tile;
    return ceil_div(ceil_div(rows, row_tiles), granule) * granule;
  }
};

/// One tile: rows [row_begin, row_begin + rows) of y, outputs from out_tile on.
struct tile_place {
  index_t expert, row_begin, rows, out_tile;
};

/// Sums over chunks of experts in shared memory: built with one look at every expert; finding a
/// tile takes two looks at them and one at each 32 experts of a chunk. The first tile of a block is
/// waited for, so both are short.
class expert_tiles {
 public:
  static constexpr int most_chunks = 256;
  using memory = index_t[most_chunks + 1];

  /// By all threads of the block; ends with a barrier.
  __device__ expert_tiles(tile_cut const& cut, memory& before)
      : cut_(cut), before_(before), chunk_(ceil_div(cut.experts(), most_chunks)) {
    if (chunk_ == 0) chunk_ = 1;
    index_t const experts = cut_.experts();
    // Whole warps of sums; behind them nothing is added.
    int const chunks = within(ceil_div(experts, 32) * 32, most_chunks);
    for (int c = thread_number(); c < chunks; c += block_threads()) {
      index_t sum = 0;
      for (index_t e = c * chunk_; e < (c + 1) * chunk_ && e < experts; ++e) sum += cut_.tiles(e);
      before_[c + 1] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) add_up(chunks);
    __syncthreads();
  }

  [[nodiscard]] __device__ index_t count() const { return before_[most_chunks]; }

  /// Tile `number` in [0, count()); by whole warps.
  [[nodiscard]] __device__ tile_place at(index_t number) const {
    // The last chunk that no more than `number` tiles lie before: among the first ones of all
    // lanes, then among those of one lane.
    constexpr int each = most_chunks / 32;
    int const lane = lane_number();
    int const run = last_lane(before_[lane * each] <= number) * each;
    int const chunk = run + last_lane(lane < each && before_[run + lane] <= number);
    number -= before_[chunk];
    index_t expert = chunk * chunk_;
    if (chunk_ > 1) find_expert(expert, number);
    return place_in(expert, number);
  }

 private:
  /// The last lane of which something is true that is true of all before it, and of the first.
  [[nodiscard]] static __device__ int last_lane(bool holds) {
    return __popc(__ballot_sync(~0U, holds)) - 1;
  }
  [[nodiscard]] static __device__ index_t shuffle_up(index_t value, unsigned by) {
    return static_cast<index_t>(__shfl_up_sync(~0U, static_cast<long long>(value), by));
  }
  [[nodiscard]] static __device__ index_t shuffle(index_t value, int lane) {
    return static_cast<index_t>(__shfl_sync(~0U, static_cast<long long>(value), lane));
  }
  /// Sum over the lanes up to this one.
  [[nodiscard]] static __device__ index_t scan(index_t value) {
    for (unsigned by = 1; by < 32; by *= 2) {
      index_t const other = shuffle_up(value, by);
      if (threadIdx.x % 32 >= by) value += other;
    }
    return value;
  }

  /// By one warp.
  __device__ void add_up(int chunks) {
    index_t sum = 0;
    int c = 1 + lane_number();
    if (threadIdx.x == 0) before_[0] = 0;
    for (; c <= chunks; c += 32) {
      index_t const up_to = sum + scan(before_[c]);
      before_[c] = up_to;
      sum = shuffle(up_to, 31);
    }
    for (; c <= most_chunks; c += 32) before_[c] = sum;
  }

  __device__ void find_expert(index_t& expert, index_t& number) const {
    for (;; expert += 32) {
      index_t const e = expert + threadIdx.x % 32;
      index_t const tiles = e < cut_.experts() ? cut_.tiles(e) : 0;
      index_t const sum = scan(tiles);
      unsigned const found = __ballot_sync(~0U, number < sum);
      if (found != 0) {
        int const lane = __clz(__brev(found));
        expert += lane;
        number -= shuffle(sum - tiles, lane);
        return;
      }
      number -= shuffle(sum, 31);
    }
  }

  [[nodiscard]] __device__ tile_place place_in(index_t expert, index_t number) const {
    index_t const first = cut_.begin(expert), rows = cut_.rows(expert, first);
    index_t const row_tiles = cut_.row_tiles(rows), row_group = cut_.row_group;
    if (row_tiles == 1) return {expert, first, rows, number};
    index_t const group = number / (row_group * cut_.out_tiles);
    index_t const left = row_tiles - group * row_group;
    index_t const here = left < row_group ? left : row_group;
    number -= group * row_group * cut_.out_tiles;
    index_t const step = cut_.step(rows, row_tiles);
    index_t const row_tile = group * row_group + number % here, row = row_tile * step;
    index_t const count = row_tile + 1 == row_tiles ? rows - row : step;
    return {expert, first + row, count, number / here};
  }

  tile_cut const& cut_;
  memory& before_;
  index_t chunk_;  ///< experts per sum
};

}  // namespace moe64::cuda
