#pragma once

#include "cuda/kernels/device/thread_index.cuh"
#include "cuda/kernels/gemm/sm90/pipeline.cuh"

/// The tiles of a CTA on their way from the scheduler warp to all others, in shared memory. The
/// scheduler is up to tile_slots tiles ahead, because each takes several round trips to memory.
namespace moe64::cuda {

/// A tile as its users see it; the host made sure that rows and outputs are ints.
struct gemm_tile {
  int expert;  ///< below 0: there are no more
  int row, rows;
  int part, out;                ///< first output in its part
  bool shares_weights = false;  ///< m128n192: the other CTA of the cluster has the same weights

  /// Steps of 8 rows that are loaded and multiplied, at least one.
  [[nodiscard]] __device__ int steps_of_8() const { return rows <= 8 ? 1 : (rows + 7) / 8; }
};

inline constexpr int tile_slots = 4;

/// Tiles in the order in which they are published, for one warp.
class tile_reader {
 public:
  __device__ tile_reader(gemm_tile const* tiles, ring_barriers<tile_slots>& ring)
      : tiles_(tiles), ring_(ring) {}
  /// False: there are no more.
  __device__ bool next(gemm_tile& tile) {
    tile = await();
    done();
    return tile.expert >= 0;
  }
  /// The next tile, in shared memory until done(): for those who have no registers to keep it in.
  __device__ gemm_tile const& await() {
    ring_.await_filled(at_);
    return tiles_[at_.slot];
  }
  __device__ void done() {
    __syncwarp();
    if (lane_number() == 0) arrive(ring_.used[at_.slot]);
    at_.next();
  }

 private:
  gemm_tile const* tiles_;
  ring_barriers<tile_slots>& ring_;
  ring_place<tile_slots> at_;
};

/// The other end, by the scheduler warp.
class tile_publisher {
 public:
  __device__ tile_publisher(gemm_tile* tiles, ring_barriers<tile_slots>& ring)
      : tiles_(tiles), ring_(ring) {}
  __device__ void publish(gemm_tile const& tile) {
    ring_.await_free(at_);
    if (lane_number() == 0) {
      tiles_[at_.slot] = tile;
      arrive(ring_.filled[at_.slot]);
    }
    __syncwarp();
    at_.next();
  }
  /// There are no more.
  __device__ void end() { publish({-1, 0, 0, 0, 0}); }

 private:
  gemm_tile* tiles_;
  ring_barriers<tile_slots>& ring_;
  ring_place<tile_slots> at_;
};

}  // namespace moe64::cuda
