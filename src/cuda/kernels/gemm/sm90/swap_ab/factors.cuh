#pragma once

#include "cuda/kernels/gemm/sm90/swap_ab/stage.cuh"

namespace moe64::cuda {

/// One scale for each block of 128 along k; NaN where an expert has no place.
class scale_row {
 public:
  __device__ scale_row(block_scales const& of, index_t place, index_t n)
      : of_(of), first_(place < 0 ? no_place : place * of.expert + n * of.n) {}
  [[nodiscard]] __device__ float at(int k_block) const {
    if (first_ < 0) return not_a_number();
    if (of_.data == nullptr) return 1.0F;
    int const k = of_.k_blocks == 1 ? k_block : k_block / of_.k_blocks;
    index_t const i = first_ + k * of_.k;
    if (of_.type == dtype::f32) return static_cast<float const*>(of_.data)[i];
    if (of_.type == dtype::bf16) return decode_bf16(static_cast<std::uint16_t const*>(of_.data)[i]);
    return decode_e8m0(static_cast<std::uint8_t const*>(of_.data)[i]);
  }

 private:
  block_scales const& of_;
  index_t first_;
};

/// By two warps: the products of the scales of rows and of blocks of 128 outputs, a few blocks
/// along k at a time, while the scales of the next ones are on their way.
template <class Tile>
class swap_ab_scale_producer {
 public:
  static constexpr int threads = 64;

  __device__ swap_ab_scale_producer(sm90_gemm_parameters const& p, swap_ab_memory<Tile>& memory,
                                    int number)
      : p_(p), memory_(memory), number_(number) {}

  __device__ void make(gemm_tile const& tile, int k_blocks) {
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
          int const r = j * threads + number_;
          if (r < tile.eights() * 8) to[Tile::factor_place(r)] = product[j][i];
        }
        __syncwarp();
        if (lane_number() == 0) arrive(memory_.stages.filled[at_.slot]);
        at_.next();
      }
    }
  }

 private:
  static constexpr int each = (Tile::rows + threads - 1) / threads;
  static constexpr int ahead = 2;

  __device__ void load(gemm_tile const& tile, index_t place, int k, int k_blocks) {
    block_scales const& scales = p_.weight_scales[tile.part];
    int const n = scales.data == nullptr ? 0 : tile.out / 128 / scales.n_blocks;
    scale_row const outs(scales, place, n);
#pragma unroll
    for (int i = 0; i < ahead; ++i) of_weights_[i] = k + i < k_blocks ? outs.at(k + i) : 0.0F;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      int const r = j * threads + number_;
      bool const live = r < tile.rows;
      scale_row const row(p_.x_scales, 0, live ? tile.row + r : 0);
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        of_rows_[j][i] = live && k + i < k_blocks ? row.at(k + i) : 0.0F;
      }
    }
  }

  sm90_gemm_parameters const& p_;
  swap_ab_memory<Tile>& memory_;
  int number_;
  ring_place<Tile::stages> at_;
  float of_rows_[each][ahead], of_weights_[ahead];
};

}  // namespace moe64::cuda
