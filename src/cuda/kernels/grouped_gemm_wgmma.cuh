#pragma once

#include "cuda/kernels/expert_tiles.cuh"
#include "cuda/kernels/grouped_gemm_wgmma.hpp"
#include "cuda/kernels/pipeline.cuh"
#include "cuda/kernels/wgmma.cuh"

#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

/// One block of threads is a factory: a warp finds tiles, one has the copy engine fill stages of
/// weights and x, two multiply scales, and two groups of four warps multiply, scale and add.
namespace moe64::cuda {

/// A tile of 128 * Blocks outputs and up to Rows rows; each group has Blocks times 64 outputs.
template <int Blocks, int Rows, int Stages>
struct wgmma_tile {
  static constexpr int blocks = Blocks, rows = Rows, stages = Stages;
  static constexpr int outs = 128 * Blocks;
  static constexpr int threads = 384;
  static constexpr int weight_bytes = outs * 128, stage_bytes = weight_bytes + Rows * 128;
  /// Products of scales: a thread of a group uses every fourth pair of rows, which lie together.
  static constexpr int factor_slots = 8;
  static constexpr int factor_stride = (Rows / 4 + 3) / 4 * 4 + 4;
  static constexpr int factors = Blocks * 4 * factor_stride;
  /// Rows of y that a group writes at a time.
  static constexpr int rows_out = 32 / Blocks;
  static constexpr int out_bytes = rows_out * 128 * Blocks;
};

/// A tile as its users see it; the host made sure that rows and outputs are ints.
struct gemm_tile {
  int expert;  ///< below 0: there are no more
  int row, rows;
  int part, out;  ///< first output in its part
};

inline constexpr int tile_slots = 4;

template <class Tile>
struct wgmma_memory {
  alignas(1024) std::uint8_t stage[Tile::stages][Tile::stage_bytes];
  alignas(16) float factor[Tile::factor_slots][Tile::factors];
  alignas(16) std::uint8_t out[2][2][Tile::out_bytes];
  gemm_tile tile[tile_slots];
  ring_barriers<Tile::stages> stages;
  ring_barriers<Tile::factor_slots> factors;
  ring_barriers<tile_slots> tiles;
  expert_tiles::memory tile_sums;
};

/// Beside the memory itself what aligning it takes.
template <class Tile>
constexpr index_t wgmma_shared_bytes = sizeof(wgmma_memory<Tile>) + 1024;

__device__ inline int round_up_8(int rows) { return (rows + 7) / 8 * 8; }

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

/// By one warp.
template <class Tile>
__device__ void publish_tiles(grouped_gemm_wgmma_parameters const& p, expert_tiles const& tiles,
                              wgmma_memory<Tile>& memory) {
  index_t const tiles_each = ceil_div(p.n_part, index_t{Tile::outs});
  ring_place<tile_slots> at;
  for (index_t number = blockIdx.x;; number += gridDim.x) {
    bool const more = number < tiles.count();
    gemm_tile tile = {-1, 0, 0, 0, 0};
    if (more) {
      tile_place const place = tiles.at(number);
      tile.expert = static_cast<int>(place.expert);  // narrow-ok: host looked
      tile.row = static_cast<int>(place.row_begin);  // narrow-ok: host looked
      tile.rows = within(place.rows, Tile::rows);
      tile.part = place.out_tile >= tiles_each ? 1 : 0;
      index_t const out = (place.out_tile - tile.part * tiles_each) * Tile::outs;
      tile.out = static_cast<int>(out);  // narrow-ok: host looked
    }
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

/// By one thread: stages of weights and x, in the order in which they are multiplied.
template <class Tile>
class stage_loader {
 public:
  __device__ stage_loader(grouped_gemm_wgmma_parameters const& p, wgmma_memory<Tile>& memory)
      : p_(p), memory_(memory) {
    using cute::TMA::CacheHintSm90;
    weights_hint_ = static_cast<std::uint64_t>(p.once ? CacheHintSm90::EVICT_FIRST
                                                      : CacheHintSm90::EVICT_NORMAL);
  }
  __device__ void load(gemm_tile const& tile, int k_blocks) {
    int const eights = round_up_8(tile.rows) / 8;
    for (int k = 0; k < k_blocks; ++k) {
      memory_.stages.await_free(at_);
      shared_barrier& filled = memory_.stages.filled[at_.slot];
      std::uint8_t* const stage = memory_.stage[at_.slot];
      auto const bytes = static_cast<std::uint32_t>(Tile::weight_bytes + eights * 1024);
      cute::set_barrier_transaction_bytes(filled, bytes);
#pragma unroll
      for (int i = 0; i < Tile::blocks; ++i) {
        cute::SM90_TMA_LOAD_3D::copy(&p_.weights[tile.part], &filled, weights_hint_,
                                     stage + i * 128 * 128, k * 128, tile.out + i * 128,
                                     tile.expert);
      }
      load_x(tile.row, eights, k * 128, stage + Tile::weight_bytes, filled);
      at_.next();
    }
  }

 private:
  /// Boxes of 128 rows down to 8: any number of eights. Rows behind the tile are of no use, and
  /// never reach y.
  __device__ void load_x(int row, int eights, int k, std::uint8_t* to,
                         shared_barrier& filled) const {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    int done = 0;
#pragma unroll
    for (int i = 4; i >= 0; --i) {
      if ((8 << i) > Tile::rows || (eights >> i & 1) == 0) continue;
      cute::SM90_TMA_LOAD_2D::copy(&p_.x[i], &filled, hint, to + done * 1024, k, row + done * 8);
      done += 1 << i;
    }
  }

  grouped_gemm_wgmma_parameters const& p_;
  wgmma_memory<Tile>& memory_;
  std::uint64_t weights_hint_;
  ring_place<Tile::stages> at_;
};

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
    return load_number(of_.type, of_.data, i);
  }

 private:
  wgmma_scales const& of_;
  index_t first_;
};

/// By two warps: the products of the scales of rows and of blocks of 128 outputs.
template <class Tile>
class factor_maker {
 public:
  static constexpr int threads = 64;

  __device__ factor_maker(grouped_gemm_wgmma_parameters const& p, wgmma_memory<Tile>& memory,
                          int number)
      : p_(p), memory_(memory), number_(number) {}

  __device__ void make(gemm_tile const& tile, int k_blocks) {
    int const rows = round_up_8(tile.rows);
    for (int k = 0; k < k_blocks; k += ahead) {
      float of_rows[each][ahead], of_weights[Tile::blocks][ahead];
#pragma unroll
      for (int b = 0; b < Tile::blocks; ++b) {
        wgmma_scales const& scales = p_.weight_scales[tile.part];
        int const out = tile.out + b * 128;
        bool const live = out < p_.n_part;
        scale_row const row(scales, tile.expert, live ? n_of(scales, out) : 0);
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
          of_weights[b][i] = live && k + i < k_blocks ? row.at(k + i) : 0.0F;
        }
      }
#pragma unroll
      for (int j = 0; j < each; ++j) {
        int const r = j * threads + number_;
        bool const live = r < tile.rows;
        scale_row const row(p_.x_scales, 0, live ? tile.row + r : 0);
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
          of_rows[j][i] = live && k + i < k_blocks ? row.at(k + i) : 0.0F;
        }
      }
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        if (k + i >= k_blocks) break;
        memory_.factors.await_free(at_);
        float* const to = memory_.factor[at_.slot];
#pragma unroll
        for (int j = 0; j < each; ++j) {
          int const r = j * threads + number_;
          if (r >= rows) continue;
#pragma unroll
          for (int b = 0; b < Tile::blocks; ++b) {
            to[(b * 4 + r % 8 / 2) * Tile::factor_stride + r / 8 * 2 + r % 2] =
                of_rows[j][i] * of_weights[b][i];
          }
        }
        __syncwarp();
        if (lane_number() == 0) arrive(memory_.factors.filled[at_.slot]);
        at_.next();
      }
    }
  }

 private:
  static constexpr int each = (Tile::rows + threads - 1) / threads;
  /// Blocks along k whose scales are read together, so that their latencies overlap.
  static constexpr int ahead = 4;

  [[nodiscard]] static __device__ index_t n_of(wgmma_scales const& scales, int out) {
    return scales.data == nullptr ? 0 : out / 128 / scales.n_blocks;
  }

  grouped_gemm_wgmma_parameters const& p_;
  wgmma_memory<Tile>& memory_;
  int number_;
  ring_place<Tile::factor_slots> at_;
};

}  // namespace moe64::cuda
