#pragma once

#include "cuda/kernels/device/number.cuh"
#include "cuda/kernels/device/thread_index.cuh"

/// The tiles of all experts of a grouped GEMM as one sequence, which every CTA computes from
/// expert_begin: the host does not know how many rows an expert has.
namespace moe64::cuda {

/// How the rows of an expert and its outputs are cut.
struct tile_cut {
  tensor_view expert_begin;  ///< [experts + 1] int64
  index_t capacity;          ///< rows of the operands: no range reaches past them
  index_t row_tile;          ///< rows of a tile
  index_t out_tiles;         ///< tiles along the outputs
  /// 0: tiles of an expert have row_tile rows, the last one the tail rows. Otherwise they have
  /// about as many rows each, in multiples of this, which divides row_tile.
  index_t granule = 0;
  index_t tail_rows = 0;  ///< that the last tile of an expert may have beyond row_tile
  /// Rasterisation: the outputs of so many row tiles come before the next ones, so that tiles in
  /// flight share rows and weights in L2.
  static constexpr index_t raster_rows = 16;

  [[nodiscard]] __device__ index_t experts() const { return expert_begin.extent[0] - 1; }
  /// Clamped: a range that is wrong (the host cannot check it) never leads outside of the operands.
  [[nodiscard]] __device__ index_t begin(index_t expert) const {
    // Past L1: with PDL this kernel may have begun before expert_begin was written (pdl.cuh).
    index_t const row = __ldcg(&element<index_t const>(expert_begin, expert));
    return row < 0 ? 0 : row > capacity ? capacity : row;
  }
  /// Of an expert that begins there.
  [[nodiscard]] __device__ index_t rows(index_t expert, index_t first) const {
    index_t const count = begin(expert + 1) - first;
    return count < 0 ? 0 : count;
  }
  [[nodiscard]] __device__ index_t row_tiles(index_t rows) const {
    return rows > tail_rows ? ceil_div(rows - tail_rows, row_tile) : rows > 0 ? 1 : 0;
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

/// A prefix sum of the tiles of chunks of experts, in shared memory: made with one load for every
/// expert; finding a tile takes two loads of sums, and one for each 32 experts of a chunk. Both are
/// on the critical path of a CTA's first tile.
class expert_tiles {
 public:
  static constexpr int most_chunks = 256;
  using memory = index_t[most_chunks + 1];

  /// By all threads of the CTA; ends with a barrier.
  __device__ expert_tiles(tile_cut const& cut, memory& before)
      : cut_(cut), before_(before), chunk_(ceil_div(cut.experts(), most_chunks)) {
    if (chunk_ == 0) chunk_ = 1;
    index_t const experts = cut_.experts();
    // Whole warps of sums; the chunks past these have no tiles.
    int const chunks = within(ceil_div(experts, 32) * 32, most_chunks);
    for (int c = thread_number(); c < chunks; c += cta_threads()) {
      index_t sum = 0;
      for (index_t e = c * chunk_; e < (c + 1) * chunk_ && e < experts; ++e) sum += cut_.tiles(e);
      before_[c + 1] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) scan_chunks(chunks);
    __syncthreads();
  }

  [[nodiscard]] __device__ index_t count() const { return before_[most_chunks]; }

  /// Tile `index` of [0, count()); by whole warps.
  [[nodiscard]] __device__ tile_place at(index_t index) const {
    // The last chunk with no more than `index` tiles before it: a lane looks at every 8th chunk,
    // then one at each of those 8.
    constexpr int per_lane = most_chunks / 32;
    int const lane = lane_number();
    int const first = last_lane(before_[lane * per_lane] <= index) * per_lane;
    int const chunk = first + last_lane(lane < per_lane && before_[first + lane] <= index);
    index -= before_[chunk];
    index_t expert = chunk * chunk_;
    if (chunk_ > 1) find_expert(expert, index);
    return place_in(expert, index);
  }

 private:
  /// The last lane for which a condition holds that is true of a prefix of the lanes, not empty.
  [[nodiscard]] static __device__ int last_lane(bool holds) {
    return __popc(__ballot_sync(~0U, holds)) - 1;
  }
  [[nodiscard]] static __device__ index_t shuffle_up(index_t value, unsigned by) {
    return static_cast<index_t>(__shfl_up_sync(~0U, static_cast<long long>(value), by));
  }
  [[nodiscard]] static __device__ index_t shuffle(index_t value, int lane) {
    return static_cast<index_t>(__shfl_sync(~0U, static_cast<long long>(value), lane));
  }
  /// Inclusive prefix sum over the lanes.
  [[nodiscard]] static __device__ index_t scan(index_t value) {
    for (unsigned by = 1; by < 32; by *= 2) {
      index_t const other = shuffle_up(value, by);
      if (threadIdx.x % 32 >= by) value += other;
    }
    return value;
  }

  /// By one warp.
  __device__ void scan_chunks(int chunks) {
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

  __device__ void find_expert(index_t& expert, index_t& index) const {
    for (;; expert += 32) {
      index_t const e = expert + threadIdx.x % 32;
      index_t const tiles = e < cut_.experts() ? cut_.tiles(e) : 0;
      index_t const sum = scan(tiles);
      unsigned const found = __ballot_sync(~0U, index < sum);
      if (found != 0) {
        int const lane = __clz(__brev(found));
        expert += lane;
        index -= shuffle(sum - tiles, lane);
        return;
      }
      index -= shuffle(sum, 31);
    }
  }

  [[nodiscard]] __device__ tile_place place_in(index_t expert, index_t index) const {
    index_t const first = cut_.begin(expert), rows = cut_.rows(expert, first);
    index_t const row_tiles = cut_.row_tiles(rows), raster_rows = cut_.raster_rows;
    if (row_tiles == 1) return {expert, first, rows, index};
    index_t const band = index / (raster_rows * cut_.out_tiles);
    index_t const left = row_tiles - band * raster_rows;
    index_t const here = left < raster_rows ? left : raster_rows;
    index -= band * raster_rows * cut_.out_tiles;
    index_t const step = cut_.step(rows, row_tiles);
    index_t const row_tile = band * raster_rows + index % here, row = row_tile * step;
    index_t const count = row_tile + 1 == row_tiles ? rows - row : step;
    return {expert, first + row, count, index / here};
  }

  tile_cut const& cut_;
  memory& before_;
  index_t chunk_;  ///< experts of one
};

}  // namespace moe64::cuda
