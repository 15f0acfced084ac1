#pragma once

#include "cuda/kernels/gemm/balanced_tiles.cuh"
#include "cuda/kernels/gemm/sm90/large_m/tile.cuh"
#include "cuda/kernels/gemm/sm90/tma.cuh"

/// The schedules of tiles whose clusters share x: round-robin, greedy, dynamic. By the scheduler
/// warp, up to tile_slots tiles ahead; both CTAs of cluster `cluster` find the same tiles.
namespace moe64::cuda {

/// How the rows of experts are cut.
template <class Tile>
__device__ tile_cut large_m_cut(sm90_gemm_parameters const& p) {
  return {.expert_begin = p.expert_begin,
          .capacity = p.y.extent[0],
          .row_tile = Tile::rows,
          .out_tiles = 0,
          .tail_rows = Tile::most_rows - Tile::rows};
}

/// The tiles of some rows by all outputs, of a cluster: all of a part, then those of the next.
template <class Tile>
class tiles_of_rows {
 public:
  __device__ explicit tiles_of_rows(sm90_gemm_parameters const& p)
      : tiles_per_part_(
            static_cast<int>(ceil_div(p.n_part, index_t{outs}))),  // narrow-ok: host looked
        count_(p.parts * tiles_per_part_) {}
  [[nodiscard]] __device__ int count() const { return count_; }
  /// This CTA's half of one.
  [[nodiscard]] __device__ gemm_tile at(int number, int expert, int row, int rows) const {
    int const part = number / tiles_per_part_, out = (number - part * tiles_per_part_) * outs;
    return {expert, row, rows, part, out + rank_in_cluster() * Tile::outs};
  }

 private:
  static constexpr int outs = Tile::cluster * Tile::outs;
  int tiles_per_part_, count_;
};

/// Round-robin: all outputs of some rows, then those of the next rows; cluster c takes tiles c,
/// c + clusters, ...
template <class Tile>
__device__ void publish_round_robin(sm90_gemm_parameters const& p, int clusters, int cluster,
                                    large_m_memory<Tile>& memory) {
  tile_cut const cut = large_m_cut<Tile>(p);
  tile_publisher publisher(memory.tile, memory.tiles);
  row_tile_walk walk(cut, 1);
  tiles_of_rows<Tile> const tiles(p);
  int next = cluster;  // from the first tile of some rows on
  for (row_run rows = walk.next(); rows.expert >= 0; rows = walk.next()) {
    for (; next < tiles.count(); next += clusters) {
      publisher.publish(tiles.at(next, rows.expert, rows.row, rows.rows));
    }
    next -= tiles.count();
  }
  publisher.end();
}

/// What a tile takes, in about 8 ns of an H200: prologue and epilogue, and for each k-block its
/// weights and its rows. Measured with two consumer warpgroups, and taken for three as well.
__device__ inline std::uint32_t modelled_time(row_split const& rows, int k_blocks) {
  constexpr std::uint32_t fixed = 192, weights = 8, half_sub_tile = 11, most_k_blocks = 8192;
  static_assert(fixed + most_k_blocks * (weights + half_sub_tile * 9) < greedy_queue::most_time);
  auto const depth = static_cast<std::uint32_t>(  // narrow-ok: positive
      min(k_blocks, int{most_k_blocks}));
  auto const halves =
      static_cast<std::uint32_t>(2 * rows.sub_tiles) + (rows.tail ? 1U : 0U);  // narrow-ok: <= 9
  return fixed + depth * (weights + half_sub_tile * halves);
}

/// Greedy: every cluster computes the same schedule from modelled times, without communication.
/// What is done for a tile of another cluster must be short: there are `clusters` of them.
template <class Tile>
__device__ void publish_greedy(sm90_gemm_parameters const& p, int k_blocks, int clusters,
                               int cluster, large_m_memory<Tile>& memory) {
  tile_cut const cut = large_m_cut<Tile>(p);
  tile_publisher publisher(memory.tile, memory.tiles);
  row_tile_walk walk(cut, 1);
  tiles_of_rows<Tile> const tiles(p);
  greedy_queue queue(clusters);
  for (row_run rows = walk.next(); rows.expert >= 0; rows = walk.next()) {
    auto const time = modelled_time(row_split(rows.rows), k_blocks);
    for (int number = 0; number < tiles.count(); ++number) {
      if (queue.take(time) != cluster) continue;
      publisher.publish(tiles.at(number, rows.expert, rows.row, rows.rows));
    }
  }
  publisher.end();
}

/// The work counter of the dynamic schedule. One CTA of a cluster takes tiles from it and tells the
/// other through a mailbox in global memory; that one can be no more than tile_slots + 1 tiles
/// behind, since each loads half of the other's rows.
class work_counter {
 public:
  __device__ work_counter(std::uint32_t* counter, int cluster)
      : counter_(counter), mailbox_(counter + work_counter_mailboxes + cluster * mailbox_slots) {
    take_next();
  }
  /// The number of this cluster's next tile.
  [[nodiscard]] __device__ std::uint32_t next() const { return taken_ - 1; }
  __device__ void take_next() {
    static_assert(tile_slots + 2 <= mailbox_slots);
    std::uint32_t taken = 0;
    if (lane_number() == 0) {
      std::uint32_t* const slot = mailbox_ + step_ % mailbox_slots;
      if (rank_in_cluster() == 0) {
        taken = atomicAdd(counter_, 1U) + 1;
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(slot), "r"(taken) : "memory");
      } else {
        // Numbers grow: one that is no larger is from the last time round.
        do {
          asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(taken) : "l"(slot) : "memory");
        } while (taken <= taken_);
      }
    }
    taken_ = __shfl_sync(~0U, taken, 0);
    ++step_;
  }

 private:
  std::uint32_t *counter_, *mailbox_;
  std::uint32_t taken_ = 0;  ///< the number of a tile + 1: a slot of the mailbox begins as 0
  unsigned step_ = 0;
};

/// Dynamic: as many rows of an expert as L2 keeps by some outputs, then by the next; each tile is
/// taken when there is time for it, so that those in flight stay close together.
template <class Tile>
__device__ void publish_dynamic(sm90_gemm_parameters const& p, int k_blocks, int cluster,
                                large_m_memory<Tile>& memory) {
  tile_cut const cut = large_m_cut<Tile>(p);
  constexpr int l2_bytes = 8 << 20, bytes_per_k_block = Tile::rows * 128;
  tile_publisher publisher(memory.tile, memory.tiles);
  row_tile_walk walk(cut, max(1, l2_bytes / bytes_per_k_block / k_blocks));
  tiles_of_rows<Tile> const tiles(p);
  work_counter counter(p.work_counter, cluster);
  std::uint32_t first = 0;  // tiles before those of a run; of fewer than 2^31, as the host knows
  for (row_run run = walk.next(); run.expert >= 0; run = walk.next()) {
    auto const count =
        static_cast<std::uint32_t>(tiles.count() * run.tiles);  // narrow-ok: some of all tiles
    for (; counter.next() - first < count; counter.take_next()) {
      int const number = static_cast<int>(counter.next() - first);  // narrow-ok: below count
      int const out_tile = number / run.tiles, row_tile = number - out_tile * run.tiles;
      int const row = row_tile * Tile::rows;
      int const rows = row_tile + 1 == run.tiles ? run.rows - row : int{Tile::rows};
      publisher.publish(tiles.at(out_tile, run.expert, run.row + row, rows));
    }
    first += count;
  }
  publisher.end();
}

/// A greedy schedule of 66 clusters takes as long to compute as a tile with fewer k-blocks.
inline constexpr int least_greedy_k_blocks = 24;

template <class Tile>
__device__ void publish_large_m_tiles(sm90_gemm_parameters const& p, int k_blocks,
                                      large_m_memory<Tile>& memory) {
  int const clusters = static_cast<int>(gridDim.x) / Tile::cluster;  // narrow-ok: as launched
  int const cluster = static_cast<int>(blockIdx.x) / Tile::cluster;  // narrow-ok: as launched
  if constexpr (Tile::warpgroups == 2) {
    if (p.work_counter != nullptr) return publish_dynamic(p, k_blocks, cluster, memory);
  }
  if (k_blocks < least_greedy_k_blocks || clusters > greedy_queue::most_workers) {
    publish_round_robin(p, clusters, cluster, memory);
  } else {
    publish_greedy(p, k_blocks, clusters, cluster, memory);
  }
}

}  // namespace moe64::cuda
