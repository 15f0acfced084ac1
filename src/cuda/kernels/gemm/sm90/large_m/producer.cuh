#pragma once

#include "cuda/kernels/gemm/sm90/large_m/tile.cuh"
#include "cuda/kernels/gemm/sm90/tma.cuh"

namespace moe64::cuda {

/// By one thread: loads stages of weights and x by TMA, in the order in which they are multiplied.
/// The CTAs of a cluster have the same rows: each loads half of them, by multicast.
template <class Tile>
class large_m_producer {
 public:
  __device__ large_m_producer(sm90_gemm_parameters const& p, large_m_memory<Tile>& memory)
      : p_(p), memory_(memory) {}
  __device__ void load(gemm_tile const& tile, int k_stages) {
    std::uint64_t const weights_hint = weights_l2_hint(p_.evict_first);
    int const rows = row_split(tile.rows).loaded();
    int const half = (rows / 2 + 31) / 32 * 32;
    bool const second = rank_in_cluster() != 0;
    int const first_row = second ? half : 0, own_rows = second ? rows - half : half;
    auto const bytes =
        static_cast<std::uint32_t>(Tile::weight_bytes + rows * 128);  // narrow-ok: a stage
    int const matrix = matrix_coordinate(p_.expert_place[tile.part], tile.expert);
    for (int k = 0; k < k_stages; ++k) {
      memory_.stages.await_free(at_);
      shared_barrier& filled = memory_.stages.filled[at_.slot];
      std::uint8_t* const stage = memory_.stage[at_.slot];
      cute::set_barrier_transaction_bytes(filled, bytes);
      int const first = k * Tile::elements::stage_k;
      cute::SM90_TMA_LOAD_3D::copy(&p_.weights[tile.part], &filled, weights_hint, stage, first,
                                   tile.out, matrix);
      load_rows(tile, first_row, own_rows, first, stage, filled);
      at_.next();
    }
  }

 private:
  /// A multiple of 32 rows to both CTAs, in boxes of 128 down to 32.
  __device__ void load_rows(gemm_tile const& tile, int row, int rows, int k, std::uint8_t* stage,
                            shared_barrier& filled) const {
#pragma unroll
    for (int i = 4; i >= 2; --i) {
      int const box = 8 << i;
      if ((rows & box) == 0) continue;
      cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&p_.x[i], &filled, both_ctas, keep_in_l2,
                                             stage + Tile::weight_bytes + row * 128, k,
                                             tile.row + row);
      row += box;
    }
  }

  sm90_gemm_parameters const& p_;
  large_m_memory<Tile>& memory_;
  ring_place<Tile::stages> at_;
};

}  // namespace moe64::cuda
