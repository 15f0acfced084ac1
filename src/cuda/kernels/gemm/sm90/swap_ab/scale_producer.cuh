#pragma once

#include "cuda/kernels/gemm/sm90/swap_ab/tile.cuh"

namespace moe64::cuda {

/// W8A8, by two warps: for each row of a stage the product of its x scale and the weight scale of
/// the tile's 128 outputs. `ahead` k-blocks at a time, while the scales of the next ones are
/// loaded.
template <class Tile>
class swap_ab_scale_producer {
 public:
  __device__ swap_ab_scale_producer(sm90_gemm_parameters const& p, swap_ab_memory<Tile>& memory,
                                    int thread)
      : p_(p), memory_(memory), thread_(thread) {}

  __device__ void produce(gemm_tile const& tile, int k_blocks) {
    index_t const place = scale_place_of(p_.expert_place[tile.part], tile.expert);
    load(tile, place, 0, k_blocks);
    for (int k = 0; k < k_blocks; k += ahead) {
      float product[each][ahead];
#pragma unroll
      for (int j = 0; j < each; ++j) {
#pragma unroll
        for (int i = 0; i < ahead; ++i) product[j][i] = of_rows_[j][i] * of_weights_[i];
      }
      if (k + ahead < k_blocks) load(tile, place, k + ahead, k_blocks);
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        if (k + i >= k_blocks) break;
        memory_.stages.await_free(at_);
        float* const to = memory_.factor[at_.slot];
#pragma unroll
        for (int j = 0; j < each; ++j) {
          int const r = j * scale_threads + thread_;
          if (r < tile.steps_of_8() * 8) to[Tile::factor_place(r)] = product[j][i];
        }
        __syncwarp();
        if (lane_number() == 0) arrive(memory_.stages.filled[at_.slot]);
        at_.next();
      }
    }
  }

 private:
  static constexpr int each = (Tile::rows + scale_threads - 1) / scale_threads;
  static constexpr int ahead = 2;

  __device__ void load(gemm_tile const& tile, index_t place, int k, int k_blocks) {
    block_scales const& scales = p_.weight_scales[tile.part];
    int const n = scales.data == nullptr ? 0 : tile.out / 128 / scales.n_blocks;
    block_scale_row const outs(scales, place, n);
#pragma unroll
    for (int i = 0; i < ahead; ++i) of_weights_[i] = k + i < k_blocks ? outs.at(k + i) : 0.0F;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      int const r = j * scale_threads + thread_;
      bool const live = r < tile.rows;
      block_scale_row const row(p_.x_scales, 0, live ? tile.row + r : 0);
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        of_rows_[j][i] = live && k + i < k_blocks ? row.at(k + i) : 0.0F;
      }
    }
  }

  sm90_gemm_parameters const& p_;
  swap_ab_memory<Tile>& memory_;
  int thread_;
  ring_place<Tile::stages> at_;
  float of_rows_[each][ahead], of_weights_[ahead];
};

}  // namespace moe64::cuda
