#pragma once

#include "cuda/kernels/expert_tiles.cuh"
#include "cuda/kernels/grouped_gemm_wgmma.hpp"
#include "cuda/kernels/pipeline.cuh"
#include "cuda/kernels/wgmma.cuh"

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// One block of threads is a factory: a warp finds tiles, one has the copy engine fill stages of
/// weights and x, two multiply scales, and two groups of four warps multiply, scale and add. What
/// the kernels have in common.
namespace moe64::cuda {

/// A tile as its users see it; the host made sure that rows and outputs are ints.
struct gemm_tile {
  int expert;  ///< below 0: there are no more
  int row, rows;
  int part, out;  ///< first output in its part

  /// Of x that are copied and multiplied: whole eights, at least one.
  [[nodiscard]] __device__ int eights() const { return rows <= 8 ? 1 : (rows + 7) / 8; }
};

inline constexpr int tile_slots = 4;

/// What the sums of each output of a group are multiplied by, and what is added then.
template <int Outs>
struct output_terms {
  float factor[Outs], addend[Outs];
};

/// Tiles in the order in which they are published, for one warp.
class tile_reader {
 public:
  __device__ tile_reader(gemm_tile const* tiles, ring_barriers<tile_slots>& ring)
      : tiles_(tiles), ring_(ring) {}
  __device__ bool next(gemm_tile& tile) {
    ring_.await_filled(at_);
    tile = tiles_[at_.slot];
    __syncwarp();
    if (lane_number() == 0) arrive(ring_.used[at_.slot]);
    at_.next();
    return tile.expert >= 0;
  }

 private:
  gemm_tile const* tiles_;
  ring_barriers<tile_slots>& ring_;
  ring_place<tile_slots> at_;
};

/// By one warp. `place` says what is this block's of a tile; both blocks of a pair find the same
/// tiles.
template <int Cluster, class Place, class Memory>
__device__ void publish_tiles(expert_tiles const& tiles, Place const& place, Memory& memory) {
  int const rank = Cluster == 1 ? 0 : static_cast<int>(cute::block_rank_in_cluster());
  ring_place<tile_slots> at;
  for (index_t number = blockIdx.x / Cluster;; number += gridDim.x / Cluster) {
    bool const more = number < tiles.count();
    gemm_tile tile = {-1, 0, 0, 0, 0};
    if (more) tile = place(tiles.at(number), rank);
    memory.tiles.await_free(at);
    if (lane_number() == 0) {
      memory.tile[at.slot] = tile;
      arrive(memory.tiles.filled[at.slot]);
    }
    __syncwarp();
    at.next();
    if (!more) return;
  }
}

/// One scale for each block of 128 along k.
class scale_row {
 public:
  __device__ scale_row(wgmma_scales const& of, index_t expert, index_t n)
      : of_(of), first_(expert * of.expert + n * of.n) {}
  [[nodiscard]] __device__ float at(int k_block) const {
    if (of_.data == nullptr) return 1.0F;
    int const k = of_.k_blocks == 1 ? k_block : k_block / of_.k_blocks;
    index_t const i = first_ + k * of_.k;
    if (of_.type == dtype::f32) return static_cast<float const*>(of_.data)[i];
    if (of_.type == dtype::bf16) return decode_bf16(static_cast<std::uint16_t const*>(of_.data)[i]);
    return decode_e8m0(static_cast<std::uint8_t const*>(of_.data)[i]);
  }

 private:
  wgmma_scales const& of_;
  index_t first_;
};

/// By two warps: the products of the scales of rows and of blocks of 128 outputs. Each warp makes
/// every other chunk of blocks along k, so that the scales of one chunk can be on their way (behind
/// all that the copy engine has asked for) while those of the other are used.
template <class Tile, class Memory>
class factor_maker {
 public:
  __device__ factor_maker(grouped_gemm_wgmma_parameters const& p, Memory& memory, bool second)
      : p_(p), memory_(memory), mine_(!second) {}

  __device__ void make(gemm_tile const& tile, int k_blocks) {
    for (int k = 0; k < k_blocks; k += chunk) {
      int const count = k_blocks - k < chunk ? k_blocks - k : chunk;
      if (mine_) {
        load(tile, k, count);
        write(tile, count);
      } else {
        for (int i = 0; i < count; ++i) at_.next();
      }
      mine_ = !mine_;
    }
  }

 private:
  static constexpr int each = (Tile::rows + 31) / 32;  ///< rows of a lane
  static constexpr int chunk = 4;

  __device__ void load(gemm_tile const& tile, int k, int count) {
    int const lane = lane_number();
#pragma unroll
    for (int j = 0; j < each; ++j) {
      int const r = j * 32 + lane;
      bool const live = r < tile.rows;
      index_t const row = live ? tile.row + r : 0;
      if (p_.x_scales_vectors && count == chunk) {
        auto const* const from =
            static_cast<float const*>(p_.x_scales.data) + row * p_.x_scales.n + k;
        *reinterpret_cast<float4*>(of_rows_[j]) =
            live ? *reinterpret_cast<float4 const*>(from) : float4{};
      } else {
        scale_row const scales(p_.x_scales, 0, row);
#pragma unroll
        for (int i = 0; i < chunk; ++i) {
          of_rows_[j][i] = live && i < count ? scales.at(k + i) : 0.0F;
        }
      }
    }
    // Each of the first lanes has one scale of weights.
    wgmma_scales const& scales = p_.weight_scales[tile.part];
    int const b = lane / chunk % Tile::factor_blocks, i = lane % chunk;
    int const out = tile.out + b * 128;
    bool const live = out < p_.n_part && i < count;
    int const n = scales.data == nullptr ? 0 : out / 128 / scales.n_blocks;
    of_weights_ = live ? scale_row(scales, tile.expert, n).at(k + i) : 0.0F;
  }

  __device__ void write(gemm_tile const& tile, int count) {
    int const lane = lane_number();
    int const rows = tile.eights() * 8;
#pragma unroll
    for (int i = 0; i < chunk; ++i) {
      if (i >= count) break;
      memory_.stages.await_free(at_);
      float* const to = memory_.factor[at_.slot];
#pragma unroll
      for (int b = 0; b < Tile::factor_blocks; ++b) {
        float const weight = __shfl_sync(~0U, of_weights_, b * chunk + i);
#pragma unroll
        for (int j = 0; j < each; ++j) {
          int const r = j * 32 + lane;
          if (r < rows) to[Tile::factor_place(b, r)] = of_rows_[j][i] * weight;
        }
      }
      __syncwarp();
      if (lane == 0) arrive(memory_.stages.filled[at_.slot]);
      at_.next();
    }
  }

  grouped_gemm_wgmma_parameters const& p_;
  Memory& memory_;
  bool mine_;  ///< the next chunk
  ring_place<Tile::stages> at_;
  float of_rows_[each][chunk], of_weights_;
};

__device__ inline void await_group(int group) {
  if (group == 0) {
    cutlass::arch::NamedBarrier::arrive_and_wait(128, 0U);
  } else {
    cutlass::arch::NamedBarrier::arrive_and_wait(128, 1U);
  }
}

__device__ inline bool has_output_terms(grouped_gemm_wgmma_parameters const& p,
                                        gemm_tile const& tile) {
  return p.row_scales[tile.part].data != nullptr || p.bias[tile.part].present();
}

/// By the 128 threads of a group, before its sums: so their code is there once, and not for every
/// number of rows. `first` is the first output of the terms in the tile.
template <int Outs>
__device__ void load_output_terms(grouped_gemm_wgmma_parameters const& p, gemm_tile const& tile,
                                  int first, output_terms<Outs>& terms) {
  if (!has_output_terms(p, tile)) return;
  tensor_view const& bias = p.bias[tile.part];
#pragma unroll 1
  for (int i = thread_number() % 128; i < Outs; i += 128) {
    index_t const out = index_t{tile.out} + first + i;
    if (out >= p.n_part) return;
    terms.factor[i] = scale_row(p.row_scales[tile.part], tile.expert, out).at(0);
    terms.addend[i] = !bias.present()
                          ? 0.0F
                          : load_number(bias.type, bias.data, offset_of(bias, tile.expert, out));
  }
}

/// Two numbers of y.
__device__ inline std::uint32_t packed(float a, float b, bool bf16) {
  __nv_bfloat162 const narrow = __floats2bfloat162_rn(a, b);
  __half2 const half = __floats2half2_rn(a, b);
  return bf16 ? *reinterpret_cast<std::uint32_t const*>(&narrow)
              : *reinterpret_cast<std::uint32_t const*>(&half);
}

/// Outputs [out, out + 8) of a row, those that its part has.
__device__ inline void write_eight(grouped_gemm_wgmma_parameters const& p, std::uint8_t const* from,
                                   std::uint16_t* to, int out) {
  if (p.y_vectors && out + 8 <= p.n_part) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4 const*>(from);
    return;
  }
#pragma unroll 1
  for (int j = 0; j < within(p.n_part - out, 8); ++j) {
    to[j] = reinterpret_cast<std::uint16_t const*>(from)[j];
  }
}

}  // namespace moe64::cuda
