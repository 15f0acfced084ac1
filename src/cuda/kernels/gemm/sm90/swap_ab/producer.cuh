#pragma once

#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/gemm/sm90/swap_ab/tile.cuh"
#include "cuda/kernels/gemm/sm90/tma.cuh"

namespace moe64::cuda {

/// By one thread: loads stages of weights and x by TMA, in the order in which they are multiplied.
template <class Tile>
class swap_ab_producer {
 public:
  __device__ swap_ab_producer(sm90_gemm_parameters const& p, swap_ab_memory<Tile>& memory)
      : p_(p), memory_(memory), weights_hint_(weights_l2_hint(p.evict_first)) {}
  __device__ void load(gemm_tile const& tile, int k_stages) {
    int const matrix = matrix_coordinate(p_.expert_place[tile.part], tile.expert);
#pragma unroll 1
    for (int k = 0; k < k_stages; ++k) {
      memory_.stages.await_free(at_);
      load_weights(tile, matrix, k, at_.slot);
      load_x(tile, k, at_.slot);
      at_.next();
    }
  }
  /// The same for the first tile: weights of the first stages, which are free, before the kernel
  /// that writes x is awaited.
  __device__ void load_first(gemm_tile const& tile, int k_stages) {
    int const matrix = matrix_coordinate(p_.expert_place[tile.part], tile.expert);
#pragma unroll 1
    for (int k = 0; k < k_stages && k < Tile::stages; ++k) load_weights(tile, matrix, k, k);
    pdl_wait();
    pdl_launch_dependents();
#pragma unroll 1
    for (int k = 0; k < k_stages; ++k) {
      if (k >= Tile::stages) {
        memory_.stages.await_free(at_);
        load_weights(tile, matrix, k, at_.slot);
      }
      load_x(tile, k, at_.slot);
      at_.next();
    }
  }

 private:
  /// Also says how many bytes the stage will get.
  __device__ void load_weights(gemm_tile const& tile, int matrix, int k, int slot) const {
    shared_barrier& filled = memory_.stages.filled[slot];
    auto const bytes = static_cast<std::uint32_t>(  // narrow-ok: a stage
        Tile::weight_bytes + tile.steps_of_8() * 1024);
    cute::set_barrier_transaction_bytes(filled, bytes);
    cute::SM90_TMA_LOAD_3D::copy(&p_.weights[tile.part], &filled, weights_hint_,
                                 memory_.stage[slot], k * Tile::elements::stage_k, tile.out,
                                 matrix);
  }
  /// Boxes of 128 rows down to 8: any multiple of 8. Rows behind the tile are multiplied, but never
  /// reach y.
  __device__ void load_x(gemm_tile const& tile, int k, int slot) const {
    shared_barrier& filled = memory_.stages.filled[slot];
    std::uint8_t* const to = memory_.stage[slot] + Tile::weight_bytes;
    int const steps = tile.steps_of_8();
    int done = 0;
#pragma unroll
    for (int i = 4; i >= 0; --i) {
      if ((8 << i) > Tile::rows || (steps >> i & 1) == 0) continue;
      cute::SM90_TMA_LOAD_2D::copy(&p_.x[i], &filled, keep_in_l2, to + done * 1024,
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
