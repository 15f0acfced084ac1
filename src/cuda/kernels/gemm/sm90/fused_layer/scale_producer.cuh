#pragma once

#include "cuda/kernels/gemm/sm90/block_scale_row.cuh"
#include "cuda/kernels/gemm/sm90/fused_layer/tile.cuh"

namespace moe64::cuda {

/// By two warps, as swap_ab_scale_producer, but for few rows: a thread has a k-block, so that all
/// scales are requested at once.
template <class Tile>
class layer_scale_producer {
 public:
  __device__ layer_scale_producer(sm90_fused_layer_parameters const& p, layer_memory<Tile>& memory,
                                  int thread)
      : p_(p), memory_(memory), thread_(thread) {}

  __device__ void run() {
    layer_reader<Tile> reader(memory_);
    for (;;) {
      layer_tile const tile = reader.await();
      if (tile.expert < 0) return;
      sm90_gemm_parameters const& p = p_.gemm[tile.gemm];
      index_t const k = ceil_div(p.k, index_t{Tile::elements::stage_k});
      auto const k_blocks = static_cast<int>(k);  // narrow-ok: host looked
      float of_weights = weight_scale(tile, thread_, k_blocks);
      await(memory_.x_there[reader.at().slot], reader.at().parity);
      reader.done();
#pragma unroll 1
      for (int first = 0; first < k_blocks; first += scale_threads) {
        if (first > 0) of_weights = weight_scale(tile, first + thread_, k_blocks);
        produce(tile, first, k_blocks, of_weights);
      }
    }
  }

 private:
  [[nodiscard]] __device__ float weight_scale(layer_tile const& tile, int k, int k_blocks) const {
    if (k >= k_blocks) return 0.0F;
    block_scales const& scales = p_.gemm[tile.gemm].weight_scales[tile.part];
    int const n = scales.data == nullptr ? 0 : tile.out / 128 / scales.n_blocks;
    return block_scale_row(scales, tile.expert, n).at(k);
  }

  /// K-blocks [first, first + scale_threads).
  __device__ void produce(layer_tile const& tile, int first, int k_blocks, float of_weights) {
    swap_ab_memory<Tile>& memory = memory_.gemm;
    int const mine = first + thread_;
    float of_rows[Tile::rows];
#pragma unroll
    for (int r = 0; r < Tile::rows; ++r) {
      bool const live = mine < k_blocks && r < tile.rows;
      block_scale_row const row(p_.gemm[tile.gemm].x_scales, 0, tile.row + (live ? r : 0));
      of_rows[r] = live ? row.at(mine) : 0.0F;
    }
#pragma unroll 1
    for (int i = 0; i < scale_threads && first + i < k_blocks; ++i, at_.next()) {
      memory.stages.await_free(at_);
      if (thread_ == i) {
        float* const to = memory.factor[at_.slot];
#pragma unroll
        for (int r = 0; r < Tile::rows; ++r) {
          if (r < tile.steps_of_8() * 8) to[Tile::factor_place(r)] = of_rows[r] * of_weights;
        }
      }
      __syncwarp();
      // Both warps, so that none falls behind by more than a round.
      if (lane_number() == 0) arrive(memory.stages.filled[at_.slot]);
    }
  }

  sm90_fused_layer_parameters const& p_;
  layer_memory<Tile>& memory_;
  int thread_;
  ring_place<Tile::stages> at_;
};

}  // namespace moe64::cuda
