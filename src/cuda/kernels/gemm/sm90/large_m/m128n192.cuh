#pragma once

#include "cuda/kernels/gemm/sm90/large_m/kernel.cuh"

/// Many rows along a short k: 128 rows by 192 outputs. A product of 64 x 192 takes the tensor cores
/// so long that a group can scale and add beside one of the other's, the left operand is read for
/// more outputs, and the copy engine writes y. Rows come in 64s: there is no room for a rest.
namespace moe64::cuda {

/// By one warp, which is ahead of the others: 16 row tiles, two by two, by some outputs, then by
/// the next, by turns. A pair of blocks takes as long as the larger of its tiles, so that half
/// tiles, which experts have at their ends, are put beside each other.
class m128n192_scheduler {
 public:
  __device__ m128n192_scheduler(sm90_gemm_parameters const& p,
                                large_m_memory<m128n192_tile>& memory)
      : p_(p),
        ring_(memory.tile, memory.tiles),
        outs_each_(static_cast<int>(  // narrow-ok: host looked
            ceil_div(p.n_part, index_t{m128n192_tile::outs}))) {}

  __device__ void run() {
    int const workers =
        static_cast<int>(gridDim.x) / m128n192_tile::cluster;            // narrow-ok: as launched
    int number = static_cast<int>(blockIdx.x) / m128n192_tile::cluster;  // narrow-ok: as launched
    tile_cut const cut = large_m_cut<m128n192_tile>(p_);
    row_tile_walk walk(cut, 1);
    while (gather(walk)) {
      int const tiles = pairs * outs_each_ * p_.parts;  // of outputs below 2^31: below 2^28
      for (; number < tiles; number += workers) publish(number % pairs, number / pairs);
      number -= tiles;
    }
    ring_.publish({-1, 0, 0, 0, 0});
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
      int const lane = run.rows > m128n192_tile::block ? front++ : --back;
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
    int const part = out / outs_each_;
    gemm_tile tile = {own.expert,
                      own.row,
                      own.rows,
                      part,
                      (out - part * outs_each_) * m128n192_tile::outs,
                      own.rows > 0 && other.rows > 0 && own.expert == other.expert};
    if (own.rows == 0) {
      // Who brings scales looks at the row before, where a tile has none.
      tile.expert = other.expert;
      tile.row = other.row + 1;
    }
    ring_.publish(tile);
  }

  sm90_gemm_parameters const& p_;
  tile_ring ring_;
  int outs_each_;
  row_run own_ = {};
};

template <>
__device__ inline void schedule_tiles<m128n192_tile>(sm90_gemm_parameters const& p, int,
                                                     large_m_memory<m128n192_tile>& memory) {
  m128n192_scheduler(p, memory).run();
}

template <>
class operand_producer<m128n192_tile> {
 public:
  __device__ operand_producer(sm90_gemm_parameters const& p, large_m_memory<m128n192_tile>& memory)
      : p_(p), memory_(memory) {}
  __device__ void load(gemm_tile const& tile, int k_blocks) {
    // Boxes of 64 or 128 rows of x.
    int const rows = ceil_div(tile.rows, m128n192_tile::block) * m128n192_tile::block;
    auto const bytes = static_cast<std::uint32_t>(  // narrow-ok: a stage
        rows == 0 ? 0 : m128n192_tile::weight_bytes + rows * 128);
    int const matrix = matrix_coordinate(p_.expert_place[tile.part], tile.expert);
    for (int k = 0; k < k_blocks; ++k) {
      memory_.stages.await_free(at_);
      shared_barrier& filled = memory_.stages.filled[at_.slot];
      cute::set_barrier_transaction_bytes(filled, bytes);
      if (rows != 0) {
        int const first = k * m128n192_tile::elements::stage_k;
        std::uint8_t* const stage = memory_.stage[at_.slot];
        load_weights(tile, matrix, first, stage, filled);
        cute::SM90_TMA_LOAD_2D::copy(&p_.x[rows == 128 ? 4 : 3], &filled, hint,
                                     stage + m128n192_tile::weight_bytes, first, tile.row);
      }
      at_.next();
    }
  }

 private:
  static constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);

  /// In two boxes. Of shared weights each block of the pair copies one, to both.
  __device__ void load_weights(gemm_tile const& tile, int matrix, int k, std::uint8_t* stage,
                               shared_barrier& filled) const {
    constexpr int half = m128n192_tile::outs / 2;
    constexpr std::uint16_t both = 3;
    tensor_map const& map = p_.weights[tile.part];
    if (tile.shares) {
      int const out = rank_in_cluster() * half;
      cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, &filled, both, hint, stage + out * 128, k,
                                             tile.out + out, matrix);
      return;
    }
#pragma unroll
    for (int out = 0; out < m128n192_tile::outs; out += half) {
      cute::SM90_TMA_LOAD_3D::copy(&map, &filled, hint, stage + out * 128, k, tile.out + out,
                                   matrix);
    }
  }

  sm90_gemm_parameters const& p_;
  large_m_memory<m128n192_tile>& memory_;
  ring_place<m128n192_tile::stages> at_;
};

__device__ __forceinline__ void multiply_tile(consumer_thread<m128n192_tile>& thread,
                                              gemm_tile const& tile, int k_blocks) {
  // All lanes have the same, which the compiler must know.
  int const rows = __shfl_sync(~0U, tile.rows, 0);
  thread.middle = __shfl_sync(~0U, tile.out / 64 % 2 * m128n192_tile::chunk, 0);
  if (rows > thread.group * m128n192_tile::block) {
    multiply_sums<consumer_accumulators<m128n192_tile, 1, false, false>>(thread, tile, k_blocks);
  } else {
    pass_tile(thread, k_blocks);
  }
}

}  // namespace moe64::cuda
