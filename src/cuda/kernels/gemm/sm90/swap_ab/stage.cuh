#pragma once

#include "cuda/kernels/device/expert_place.cuh"
#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/gemm/expert_tiles.cuh"
#include "cuda/kernels/gemm/kernel_name.hpp"
#include "cuda/kernels/gemm/sm90/gemm.hpp"
#include "cuda/kernels/gemm/sm90/pipeline.cuh"
#include "cuda/kernels/gemm/sm90/wgmma.cuh"

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include <type_traits>

/// One block of threads is a factory: a warp finds tiles, one has the copy engine fill stages of
/// weights and x, two multiply scales, and two groups of four warps multiply, scale and add. Here
/// is what they hand to each other, and the first two.
namespace moe64::cuda {

/// A tile as its users see it; the host made sure that rows and outputs are ints.
struct gemm_tile {
  int expert;  ///< below 0: there are no more
  int row, rows;
  int part, out;        ///< first output in its part
  bool shares = false;  ///< of `broad`: the other block of the pair has the same weights

  /// Of x that are copied and multiplied: whole eights, at least one.
  [[nodiscard]] __device__ int eights() const { return rows <= 8 ? 1 : (rows + 7) / 8; }
};

inline constexpr int tile_slots = 4;

/// Which of its cluster a block is.
__device__ inline int rank_in_cluster() {
  return static_cast<int>(cute::block_rank_in_cluster());  // narrow-ok: below 16
}

/// What the sums of each output of a group are multiplied by, and what is added then.
template <int Outs>
struct output_terms {
  float factor[Outs], addend[Outs];

  [[nodiscard]] __device__ float of(int out, float sum) const {
    return sum * factor[out] + addend[out];
  }
};

/// A tile of 128 outputs and up to Rows rows, which are the right operand and so any multiple of 8;
/// each group has 64 outputs.
template <class Elements, int Rows, int Stages>
struct swap_ab_tile {
  using elements = Elements;
  static constexpr int rows = Rows, stages = Stages;
  static constexpr int outs = 128;
  static constexpr int threads = 384;
  static constexpr int weight_bytes = outs * 128, stage_bytes = weight_bytes + Rows * 128;
  /// Products of scales: a thread of a group uses every fourth pair of rows, which lie together.
  static constexpr int factor_stride = (Rows / 4 + 3) / 4 * 4 + 4;
  static constexpr int factors = Elements::scaled ? 4 * factor_stride : 4;
  /// Where the factor of row r is.
  [[nodiscard]] static __device__ int factor_place(int r) {
    return r % 8 / 2 * factor_stride + r / 8 * 2 + r % 2;
  }
  /// Rows of y that a group writes at a time.
  static constexpr int rows_out = 32;
  static constexpr int out_bytes = rows_out * 128;
};

template <class Tile>
struct swap_ab_memory {
  alignas(1024) std::uint8_t stage[Tile::stages][Tile::stage_bytes];
  alignas(16) float factor[Tile::stages][Tile::factors];
  alignas(16) std::uint8_t out[2][2][Tile::out_bytes];
  output_terms<64> terms[2];
  gemm_tile tile[tile_slots];
  ring_barriers<Tile::stages> stages;
  ring_barriers<tile_slots> tiles;
  expert_tiles::memory tile_sums;
};

/// Of the shared memory: aligning it takes up to 1024 bytes.
template <class Tile>
constexpr gemm_config swap_ab_config = {
    Tile::rows, Tile::outs, Tile::rows, 1, Tile::threads, sizeof(swap_ab_memory<Tile>) + 1024};

/// Names of kernels, as of their tiles.
template <class Elements, tile_shape Tile>
inline constexpr kernel_name sm90_kernel_name = {"sm90", Elements::name, name(Tile)};

template <class Elements, tile_shape Tile>
using swap_ab_tile_of = std::conditional_t<Tile == tile_shape::m32n128,
                                           swap_ab_tile<Elements, 32, 10>,
                                           swap_ab_tile<Elements, 64, 8>>;

template <class Elements, tile_shape Tile>
[[nodiscard]] kernel<sm90_gemm_parameters> swap_ab_kernel();

/// Tiles in the order in which they are published, for one warp.
class tile_reader {
 public:
  __device__ tile_reader(gemm_tile const* tiles, ring_barriers<tile_slots>& ring)
      : tiles_(tiles), ring_(ring) {}
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

/// A tile for a block of threads that has `outs` outputs of it and is number `rank` of the
/// `cluster` that have neighbouring ones.
struct tile_split {
  index_t tiles_each;  ///< tiles of outputs of a part
  int outs, most_rows, cluster, rank;

  [[nodiscard]] __device__ gemm_tile operator()(tile_place const& place) const {
    gemm_tile tile;
    tile.expert = static_cast<int>(place.expert);  // narrow-ok: host looked
    tile.row = static_cast<int>(place.row_begin);  // narrow-ok: host looked
    tile.rows = within(place.rows, most_rows);
    tile.part = place.out_tile >= tiles_each ? 1 : 0;
    index_t const first = place.out_tile - tile.part * tiles_each;
    tile.out = static_cast<int>((first * cluster + rank) * outs);  // narrow-ok: host looked
    return tile;
  }
};

/// The tiles of a block of threads as the one warp that finds them sees them.
class tile_ring {
 public:
  __device__ tile_ring(gemm_tile* tiles, ring_barriers<tile_slots>& ring)
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

 private:
  gemm_tile* tiles_;
  ring_barriers<tile_slots>& ring_;
  ring_place<tile_slots> at_;
};

/// By one warp, which is ahead of the others: to find a tile takes several answers of memory. All
/// blocks of a cluster find the same tiles.
template <class Tiles, class Memory>
__device__ void publish_tiles(Tiles const& tiles, tile_split const& split, Memory& memory) {
  tile_ring ring(memory.tile, memory.tiles);
  int const clusters = static_cast<int>(gridDim.x) / split.cluster;  // narrow-ok: as launched
  index_t number = static_cast<int>(blockIdx.x) / split.cluster;     // narrow-ok: as launched
  for (; number < tiles.count(); number += clusters) ring.publish(split(tiles.at(number)));
  ring.publish({-1, 0, 0, 0, 0});
}

/// The place of an expert's values for the copy engine, which gives zeros where there is none.
__device__ inline int matrix_coordinate(part_places const& part, int expert) {
  return static_cast<int>(place_of(part.values, expert));  // narrow-ok: host looked
}

/// By one thread: stages of weights and x, in the order in which they are multiplied.
template <class Tile>
class swap_ab_operand_producer {
 public:
  __device__ swap_ab_operand_producer(sm90_gemm_parameters const& p, swap_ab_memory<Tile>& memory)
      : p_(p), memory_(memory) {
    using cute::TMA::CacheHintSm90;
    weights_hint_ = static_cast<std::uint64_t>(p.evict_first ? CacheHintSm90::EVICT_FIRST
                                                             : CacheHintSm90::EVICT_NORMAL);
  }
  __device__ void load(gemm_tile const& tile, int k_blocks) {
    int const matrix = matrix_coordinate(p_.expert_place[tile.part], tile.expert);
#pragma unroll 1
    for (int k = 0; k < k_blocks; ++k) {
      memory_.stages.await_free(at_);
      load_weights(tile, matrix, k, at_.slot);
      load_x(tile, k, at_.slot);
      at_.next();
    }
  }
  /// The same for the first tile: weights of the first stages, which are free, before what writes x
  /// is awaited.
  __device__ void load_first(gemm_tile const& tile, int k_blocks) {
    int const matrix = matrix_coordinate(p_.expert_place[tile.part], tile.expert);
#pragma unroll 1
    for (int k = 0; k < k_blocks && k < Tile::stages; ++k) load_weights(tile, matrix, k, k);
    pdl_wait();
    pdl_launch_dependents();
#pragma unroll 1
    for (int k = 0; k < k_blocks; ++k) {
      if (k >= Tile::stages) {
        memory_.stages.await_free(at_);
        load_weights(tile, matrix, k, at_.slot);
      }
      load_x(tile, k, at_.slot);
      at_.next();
    }
  }

 private:
  /// Also says how much the stage will get.
  __device__ void load_weights(gemm_tile const& tile, int matrix, int k, int slot) const {
    shared_barrier& filled = memory_.stages.filled[slot];
    auto const bytes = static_cast<std::uint32_t>(  // narrow-ok: a stage
        Tile::weight_bytes + tile.eights() * 1024);
    cute::set_barrier_transaction_bytes(filled, bytes);
    cute::SM90_TMA_LOAD_3D::copy(&p_.weights[tile.part], &filled, weights_hint_,
                                 memory_.stage[slot], k * Tile::elements::stage_k, tile.out,
                                 matrix);
  }
  /// Boxes of 128 rows down to 8: any number of eights. Rows behind the tile are of no use, and
  /// never reach y.
  __device__ void load_x(gemm_tile const& tile, int k, int slot) const {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    shared_barrier& filled = memory_.stages.filled[slot];
    std::uint8_t* const to = memory_.stage[slot] + Tile::weight_bytes;
    int const eights = tile.eights();
    int done = 0;
#pragma unroll
    for (int i = 4; i >= 0; --i) {
      if ((8 << i) > Tile::rows || (eights >> i & 1) == 0) continue;
      cute::SM90_TMA_LOAD_2D::copy(&p_.x[i], &filled, hint, to + done * 1024,
                                   k * Tile::elements::stage_k, tile.row + done * 8);
      done += 1 << i;
    }
  }

  sm90_gemm_parameters const& p_;
  swap_ab_memory<Tile>& memory_;
  std::uint64_t weights_hint_;
  ring_place<Tile::stages> at_;
};

}  // namespace moe64::cuda
