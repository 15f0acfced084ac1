#pragma once

#include "cuda/kernels/gemm/sm90/fused_layer/layer.hpp"
#include "cuda/kernels/gemm/sm90/swap_ab/tile.cuh"
#include "cuda/kernels/plan/small_batch_sort.cuh"

/// The swapAB tiles of gate_up and down, which CTAs take from one work counter. A tile of down
/// requests its weights at once and waits for its rows of the activation: for tiles alone that were
/// taken before it, by CTAs that run. So it gets them, however few CTAs there is room for.
namespace moe64::cuda {

/// Warp roles; scales and finisher have two warps each, consumers two warpgroups.
namespace layer_warp {
inline constexpr int producer = 0;     ///< takes tiles and loads them by TMA
inline constexpr int x_watcher = 1;    ///< waits for rows of the activation
inline constexpr int first_scale = 2;  ///< scale products
inline constexpr int first_consumer = 4;
inline constexpr int first_finisher = 12;  ///< activation and combination
inline constexpr int all = 14;
}  // namespace layer_warp
inline constexpr int finisher_warps = 2;

enum layer_gemm { gate_up = 0, down = 1 };

/// Rows of one expert that are multiplied together.
struct row_tile {
  int expert, row, rows;
};

struct layer_tile : gemm_tile {
  int gemm, row_tile;
};

using layer_tile_place = ring_place<tile_slots>;
inline constexpr int written_slots = 2;

template <class Tile>
struct layer_memory {
  swap_ab_memory<Tile> gemm;
  small_batch_slots sorted;
  int begins[small_batch];  ///< row of a slot with which a row tile begins, or nobody
  row_tile row_tiles[small_batch];
  int row_tile_count;
  layer_tile tile[tile_slots];
  ring_barriers<tile_slots> tiles;
  shared_barrier x_there[tile_slots];    ///< x of a tile can be read
  ring_barriers<written_slots> written;  ///< tiles, in their order
  int last[written_slots];               ///< whether the tile is the last of those that count

  /// By one thread.
  __device__ void make_barriers() {
    gemm.stages.make(1 + scale_warps, Tile::consumer_warps);
    tiles.make(1, 1 + scale_warps + Tile::consumer_warps + finisher_warps);
    for (shared_barrier& barrier : x_there) make_barrier(barrier, 1);
    written.make(Tile::consumer_warps, finisher_warps);
    cutlass::arch::fence_barrier_init();
  }
};

/// Tiles for one warp, as tile_reader.
template <class Tile>
class layer_reader {
 public:
  __device__ explicit layer_reader(layer_memory<Tile>& memory) : memory_(memory) {}
  __device__ bool next(layer_tile& tile) {
    tile = await();
    done();
    return tile.expert >= 0;
  }
  __device__ layer_tile const& await() {
    memory_.tiles.await_filled(at_);
    return memory_.tile[at_.slot];
  }
  __device__ void done() {
    __syncwarp();
    if (lane_number() == 0) arrive(memory_.tiles.used[at_.slot]);
    at_.next();
  }
  [[nodiscard]] __device__ layer_tile_place const& at() const { return at_; }

 private:
  layer_memory<Tile>& memory_;
  layer_tile_place at_;
};

/// What other CTAs have counted; what they wrote before is then seen.
__device__ inline std::uint32_t load_acquire(std::uint32_t const* counter) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
/// Counts one more, behind all that the thread wrote or has seen, and says how many there were;
/// what those wrote is then seen.
__device__ inline std::uint32_t add_one(std::uint32_t* counter) {
  std::uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}
/// Proxy fence between what threads write to global memory and what TMA reads.
__device__ inline void fence_before_tma() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace moe64::cuda
