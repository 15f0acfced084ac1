#pragma once

#include "cuda/kernels/gemm/sm90/large_m/scheduler.cuh"

/// The tile m128n192 (W8A8), for many rows along a short k: a WGMMA of 64 x 192 takes the tensor
/// cores so long that one warpgroup promotes meanwhile, operand A is read for more outputs, and y
/// is written by TMA. The CTAs of a cluster have the same outputs and two row tiles, which may be
/// of two experts; rows come in 64s, since there is no room for a tail.
namespace moe64::cuda {

/// Round-robin: 16 row tiles, two by two, by some outputs, then by the next. A cluster takes as
/// long as the larger of its two, so that half tiles, which experts have at their ends, are put
/// together. By the scheduler warp.
template <class Tile>
class row_pair_scheduler {
 public:
  __device__ row_pair_scheduler(sm90_gemm_parameters const& p, large_m_memory<Tile>& memory)
      : p_(p),
        publisher_(memory.tile, memory.tiles),
        tiles_per_part_(static_cast<int>(  // narrow-ok: host looked
            ceil_div(p.n_part, index_t{Tile::outs}))) {}

  __device__ void run() {
    int const clusters = static_cast<int>(gridDim.x) / Tile::cluster;  // narrow-ok: as launched
    int number = static_cast<int>(blockIdx.x) / Tile::cluster;         // narrow-ok: as launched
    tile_cut const cut = large_m_cut<Tile>(p_);
    row_tile_walk walk(cut, 1);
    while (gather(walk)) {
      int const tiles = pairs * tiles_per_part_ * p_.parts;  // of outputs below 2^31: below 2^28
      for (; number < tiles; number += clusters) publish(number % pairs, number / pairs);
      number -= tiles;
    }
    publisher_.end();
  }

 private:
  static constexpr int pairs = 8;

  /// One for each lane, half tiles from the last lane on. False: there are none left.
  __device__ bool gather(row_tile_walk& walk) {
    int front = 0, back = 2 * pairs;
    own_ = {};
    while (front < back) {
      row_run const run = walk.next();
      if (run.expert < 0) break;
      int const lane = run.rows > sub_tile_rows ? front++ : --back;
      if (lane == lane_number()) own_ = run;
    }
    return front > 0 || back < 2 * pairs;
  }
  [[nodiscard]] __device__ row_run of_lane(int lane) const {
    return {__shfl_sync(~0U, own_.expert, lane), __shfl_sync(~0U, own_.row, lane),
            __shfl_sync(~0U, own_.rows, lane), 1};
  }
  __device__ void publish(int pair, int out) {
    int const rank = rank_in_cluster();
    row_run const own = of_lane(2 * pair + rank), other = of_lane(2 * pair + 1 - rank);
    if (own.rows == 0 && other.rows == 0) return;
    int const part = out / tiles_per_part_;
    gemm_tile tile = {own.expert,
                      own.row,
                      own.rows,
                      part,
                      (out - part * tiles_per_part_) * Tile::outs,
                      own.rows > 0 && other.rows > 0 && own.expert == other.expert};
    if (own.rows == 0) {
      // The scale producer reads the row before, where a tile has none.
      tile.expert = other.expert;
      tile.row = other.row + 1;
    }
    publisher_.publish(tile);
  }

  sm90_gemm_parameters const& p_;
  tile_publisher publisher_;
  int tiles_per_part_;
  row_run own_ = {};
};

/// By one thread: loads stages of weights and x by TMA. Of weights that both CTAs have each loads
/// half, by multicast.
template <class Tile>
class row_pair_producer {
 public:
  __device__ row_pair_producer(sm90_gemm_parameters const& p, large_m_memory<Tile>& memory)
      : p_(p), memory_(memory) {}
  __device__ void load(gemm_tile const& tile, int k_blocks) {
    // Boxes of 64 or 128 rows of x.
    int const rows = ceil_div(tile.rows, sub_tile_rows) * sub_tile_rows;
    auto const bytes = static_cast<std::uint32_t>(  // narrow-ok: a stage
        rows == 0 ? 0 : Tile::weight_bytes + rows * 128);
    int const matrix = matrix_coordinate(p_.expert_place[tile.part], tile.expert);
    for (int k = 0; k < k_blocks; ++k) {
      memory_.stages.await_free(at_);
      shared_barrier& filled = memory_.stages.filled[at_.slot];
      cute::set_barrier_transaction_bytes(filled, bytes);
      if (rows != 0) {
        int const first = k * Tile::elements::stage_k;
        std::uint8_t* const stage = memory_.stage[at_.slot];
        load_weights(tile, matrix, first, stage, filled);
        cute::SM90_TMA_LOAD_2D::copy(&p_.x[rows == 128 ? 4 : 3], &filled, keep_in_l2,
                                     stage + Tile::weight_bytes, first, tile.row);
      }
      at_.next();
    }
  }

 private:
  __device__ void load_weights(gemm_tile const& tile, int matrix, int k, std::uint8_t* stage,
                               shared_barrier& filled) const {
    constexpr int half = Tile::config.weight_box_rows();
    static_assert(2 * half == Tile::outs);
    tensor_map const& map = p_.weights[tile.part];
    if (tile.shares_weights) {
      int const out = rank_in_cluster() * half;
      cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, &filled, both_ctas, keep_in_l2,
                                             stage + out * 128, k, tile.out + out, matrix);
      return;
    }
#pragma unroll
    for (int out = 0; out < Tile::outs; out += half) {
      cute::SM90_TMA_LOAD_3D::copy(&map, &filled, keep_in_l2, stage + out * 128, k, tile.out + out,
                                   matrix);
    }
  }

  sm90_gemm_parameters const& p_;
  large_m_memory<Tile>& memory_;
  ring_place<Tile::stages> at_;
};

}  // namespace moe64::cuda
