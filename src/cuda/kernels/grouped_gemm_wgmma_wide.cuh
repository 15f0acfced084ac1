#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_sums.cuh"

/// Many rows per expert. Rows of x are the left operand here, 64 at a time, so that a thread has
/// two of them and needs two scales for each block along k, where weights on the left would need
/// one for every other row of the tile: what those loads take of shared memory the tensor cores
/// lack. Up to 32 rows that are left over are the right operand, as in the tiles of few rows.
namespace moe64::cuda {

/// Two blocks of threads are a pair: the same rows, neighbouring outputs; each copies half of the
/// rows to both.
template <class Numbers>
struct wide_tile {
  using numbers = Numbers;
  static constexpr int stages = 4;
  static constexpr int block = 64, rows = 4 * block, rest = 32, most_rows = rows + rest;
  static constexpr int outs = 128, cluster = 2, threads = 384;
  static constexpr int box = 32;  ///< rows that are copied at once
  static constexpr int weight_bytes = outs * 128, stage_bytes = weight_bytes + most_rows * 128;
  /// Rows by outputs that a warp writes at a time, and where rows begin: 16 bytes further in the
  /// banks, so that neither matrices nor rows meet there.
  static constexpr int out_rows = 16, out_cols = 32, out_stride = out_cols * 2 + 16;
};

template <class Tile>
struct wide_memory {
  alignas(1024) std::uint8_t stage[Tile::stages][Tile::stage_bytes];
  alignas(16) float factor[Tile::stages][Tile::most_rows];
  alignas(16) std::uint8_t out[8][Tile::out_rows * Tile::out_stride];
  output_terms<Tile::outs> terms[2];
  gemm_tile tile[tile_slots];
  ring_barriers<Tile::stages> stages;
  ring_barriers<tile_slots> tiles;
  expert_tiles::memory tile_sums;
};

/// How the rows of a tile are multiplied.
struct row_split {
  int blocks;  ///< of 64
  bool rest;   ///< up to 32 behind them

  __device__ explicit row_split(int rows) : blocks(rows / 64), rest(rows % 64 != 0) {
    if (rows % 64 <= 32) return;
    ++blocks;
    rest = false;
  }
  [[nodiscard]] __device__ int copied() const { return blocks * 64 + (rest ? 32 : 0); }
};

/// By warp 0: finds tiles, one ahead of those whose stages it fills.
template <class Tile>
class wide_loader {
 public:
  __device__ wide_loader(grouped_gemm_wgmma_parameters const& p, expert_tiles const& tiles,
                         index_t tiles_each, wide_memory<Tile>& memory)
      : p_(p),
        tiles_(tiles),
        tiles_each_(tiles_each),
        memory_(memory),
        rank_(rank_in_cluster()),
        number_(blockIdx.x / Tile::cluster) {
    using cute::TMA::CacheHintSm90;
    weights_hint_ = static_cast<std::uint64_t>(p.once ? CacheHintSm90::EVICT_FIRST
                                                      : CacheHintSm90::EVICT_NORMAL);
  }
  __device__ void run(int k_blocks) {
    gemm_tile tile = publish();
    while (tile.expert >= 0) {
      gemm_tile const next = publish();
      if (lane_number() == 0) load(tile, k_blocks);
      __syncwarp();
      tile = next;
    }
  }

 private:
  __device__ gemm_tile publish() {
    gemm_tile tile = {-1, 0, 0, 0, 0};
    if (number_ < tiles_.count()) {
      tile_place const place = tiles_.at(number_);
      tile.expert = static_cast<int>(place.expert);  // narrow-ok: host looked
      tile.row = static_cast<int>(place.row_begin);  // narrow-ok: host looked
      tile.rows = within(place.rows, Tile::most_rows);
      tile.part = place.out_tile >= tiles_each_ ? 1 : 0;
      index_t const pair = place.out_tile - tile.part * tiles_each_;
      tile.out = static_cast<int>((pair * Tile::cluster + rank_) *
                                  Tile::outs);  // narrow-ok: host looked
    }
    number_ += gridDim.x / Tile::cluster;
    memory_.tiles.await_free(published_);
    if (lane_number() == 0) {
      memory_.tile[published_.slot] = tile;
      arrive(memory_.tiles.filled[published_.slot]);
    }
    __syncwarp();
    published_.next();
    return tile;
  }
  __device__ void load(gemm_tile const& tile, int k_blocks) {
    int const rows = row_split(tile.rows).copied();
    auto const bytes =
        static_cast<std::uint32_t>(Tile::weight_bytes + rows * 128);  // narrow-ok: a stage
    for (int k = 0; k < k_blocks; ++k) {
      memory_.stages.await_free(at_);
      shared_barrier& filled = memory_.stages.filled[at_.slot];
      std::uint8_t* const stage = memory_.stage[at_.slot];
      cute::set_barrier_transaction_bytes(filled, bytes);
      int const first = k * Tile::numbers::stage_k;
#pragma unroll
      for (int out = 0; out < Tile::outs; out += 64) {
        cute::SM90_TMA_LOAD_3D::copy(&p_.weights[tile.part], &filled, weights_hint_,
                                     stage + out * 128, first, tile.out + out, tile.expert);
      }
      constexpr std::uint16_t both = 3;
      constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
#pragma unroll 1
      for (int r = rank_ * Tile::box; r < rows; r += Tile::cluster * Tile::box) {
        cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&p_.x[2], &filled, both, hint,
                                               stage + Tile::weight_bytes + r * 128, first,
                                               tile.row + r);
      }
      at_.next();
    }
  }

  grouped_gemm_wgmma_parameters const& p_;
  expert_tiles const& tiles_;
  index_t tiles_each_;
  wide_memory<Tile>& memory_;
  int rank_;
  index_t number_;
  std::uint64_t weights_hint_;
  ring_place<tile_slots> published_;
  ring_place<Tile::stages> at_;
};

/// By warps 1 to 3: the products of the scales of rows and of the tile's outputs. A few blocks along
/// k are read at once, while the stages that are filled are multiplied.
template <class Tile>
class wide_factors {
 public:
  static constexpr int threads = 96;

  __device__ wide_factors(grouped_gemm_wgmma_parameters const& p, wide_memory<Tile>& memory,
                          int k_blocks)
      : p_(p), memory_(memory), k_blocks_(k_blocks), number_(thread_number() - 32) {}

  __device__ void make(gemm_tile const& tile) {
    int const rows = row_split(tile.rows).copied();
    // Rows behind the tile have any scale: what they give is not stored.
#pragma unroll
    for (int j = 0; j < each; ++j) {
      int const r = j * threads + number_;
      row_[j] = (tile.row + index_t{r < tile.rows ? r : 0}) * p_.x_scales.n;
    }
#pragma unroll 1
    for (int k = 0; k < k_blocks_; k += ahead) {
      load(tile, k);
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        if (k + i >= k_blocks_) break;
        memory_.stages.await_free(at_);
        float const of_outs = __shfl_sync(~0U, of_outs_, i);
#pragma unroll
        for (int j = 0; j < each; ++j) {
          int const r = j * threads + number_;
          if (r < rows) memory_.factor[at_.slot][r] = of_rows_[j][i] * of_outs;
        }
        __syncwarp();
        if (lane_number() == 0) arrive(memory_.stages.filled[at_.slot]);
        at_.next();
      }
    }
  }

 private:
  static constexpr int each = Tile::most_rows / threads, ahead = 4;
  static_assert(each * threads == Tile::most_rows);

  /// Block k + i along k, or the last one.
  [[nodiscard]] __device__ int block_at(int k, int i) const {
    return k + i < k_blocks_ ? k + i : k_blocks_ - 1;
  }
  /// Lane i has the scale of outputs for block k + i.
  __device__ void load(gemm_tile const& tile, int k) {
    wgmma_scales const& outs = p_.weight_scales[tile.part];
    int const n = tile.out < p_.n_part && outs.data != nullptr ? tile.out / Tile::outs / outs.n_blocks : 0;
    of_outs_ = scale_row(outs, tile.expert, n).at(block_at(k, lane_number() % ahead));
    if (p_.x_scales.type == dtype::f32) {
      load_rows<float>(k, [](float scale) { return scale; });
    } else if (p_.x_scales.type == dtype::bf16) {
      load_rows<std::uint16_t>(k, [](std::uint16_t scale) { return decode_bf16(scale); });
    } else {
      load_rows<std::uint8_t>(k, [](std::uint8_t scale) { return decode_e8m0(scale); });
    }
  }
  template <class Stored, class Decode>
  __device__ __forceinline__ void load_rows(int k, Decode decode) {
    auto const* const scales = static_cast<Stored const*>(p_.x_scales.data);
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      int const block = p_.x_scales.k_blocks == 1 ? block_at(k, i) : block_at(k, i) / p_.x_scales.k_blocks;
      index_t const at = block * p_.x_scales.k;
#pragma unroll
      for (int j = 0; j < each; ++j) of_rows_[j][i] = decode(scales[row_[j] + at]);
    }
  }

  grouped_gemm_wgmma_parameters const& p_;
  wide_memory<Tile>& memory_;
  int k_blocks_, number_;
  ring_place<Tile::stages> at_;
  index_t row_[each];  ///< first scale of a row
  float of_rows_[each][ahead], of_outs_;
};

}  // namespace moe64::cuda
