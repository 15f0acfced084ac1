#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_parts.cuh"

/// Rows are the right operand here, so that a tile has any multiple of 8 of them.
namespace moe64::cuda {

/// A tile of 128 * Blocks outputs and up to Rows rows; each group has Blocks times 64 outputs. Two
/// blocks of threads that are a pair have the same outputs and neighbouring rows, and each copies
/// half of the weights for both.
template <class Numbers, int Blocks, int Rows, int Stages, bool Pair>
struct wgmma_tile {
  using numbers = Numbers;
  static constexpr int blocks = Blocks, rows = Rows, stages = Stages;
  static constexpr int cluster = Pair ? 2 : 1;
  static constexpr int outs = 128 * Blocks;
  static constexpr int threads = 384;
  static constexpr int weight_bytes = outs * 128, stage_bytes = weight_bytes + Rows * 128;
  /// Products of scales: a thread of a group uses every fourth pair of rows, which lie together.
  static constexpr int factor_stride = (Rows / 4 + 3) / 4 * 4 + 4;
  static constexpr int factors = Numbers::scaled ? Blocks * 4 * factor_stride : 4;
  static constexpr int factor_blocks = Blocks;
  /// Where the factor of row r and block b of 128 outputs is.
  [[nodiscard]] static __device__ int factor_place(int b, int r) {
    return (b * 4 + r % 8 / 2) * factor_stride + r / 8 * 2 + r % 2;
  }
  /// Rows of y that a group writes at a time.
  static constexpr int rows_out = 32 / Blocks;
  static constexpr int out_bytes = rows_out * 128 * Blocks;
};

template <class Tile>
struct wgmma_memory {
  alignas(1024) std::uint8_t stage[Tile::stages][Tile::stage_bytes];
  alignas(16) float factor[Tile::stages][Tile::factors];
  alignas(16) std::uint8_t out[2][2][Tile::out_bytes];
  output_terms<64 * Tile::blocks> terms[2];
  gemm_tile tile[tile_slots];
  ring_barriers<Tile::stages> stages;
  ring_barriers<tile_slots> tiles;
  expert_tiles::memory tile_sums;
};

template <class Tile>
struct narrow_places {
  index_t tiles_each;  ///< of a part

  [[nodiscard]] __device__ gemm_tile operator()(tile_place const& place, int rank) const {
    gemm_tile tile;
    int const rows = within(place.rows, Tile::cluster * Tile::rows);
    int const half = Tile::cluster == 1 ? rows : ((rows + 1) / 2 + 7) / 8 * 8;
    tile.expert = static_cast<int>(place.expert);                // narrow-ok: host looked
    tile.row = static_cast<int>(place.row_begin) + rank * half;  // narrow-ok: host looked
    tile.rows = rank == 0 ? (rows < half ? rows : half) : (rows > half ? rows - half : 0);
    tile.part = place.out_tile >= tiles_each ? 1 : 0;
    index_t const out = (place.out_tile - tile.part * tiles_each) * Tile::outs;
    tile.out = static_cast<int>(out);  // narrow-ok: host looked
    return tile;
  }
};

/// By one thread: stages of weights and x, in the order in which they are multiplied.
template <class Tile>
class narrow_loader {
 public:
  __device__ narrow_loader(grouped_gemm_wgmma_parameters const& p, wgmma_memory<Tile>& memory)
      : p_(p),
        memory_(memory),
        rank_(Tile::cluster == 1 ? 0 : static_cast<int>(cute::block_rank_in_cluster())) {
    using cute::TMA::CacheHintSm90;
    weights_hint_ = static_cast<std::uint64_t>(p.once ? CacheHintSm90::EVICT_FIRST
                                                      : CacheHintSm90::EVICT_NORMAL);
  }
  __device__ void load(gemm_tile const& tile, int k_blocks) {
    int const eights = tile.eights();
    auto const bytes = static_cast<std::uint32_t>(Tile::weight_bytes + eights * 1024);
    for (int k = 0; k < k_blocks; ++k) {
      memory_.stages.await_free(at_);
      shared_barrier& filled = memory_.stages.filled[at_.slot];
      std::uint8_t* const stage = memory_.stage[at_.slot];
      cute::set_barrier_transaction_bytes(filled, bytes);
      int const first = k * Tile::numbers::stage_k;
      load_weights(tile, first, stage, filled);
      load_x(tile.row, eights, first, stage + Tile::weight_bytes, filled);
      at_.next();
    }
  }

 private:
  /// Boxes of 64 outputs; of a pair's each block copies every other one, to both.
  __device__ void load_weights(gemm_tile const& tile, int k, std::uint8_t* to,
                               shared_barrier& filled) const {
    tensor_map const* const map = &p_.weights[tile.part];
#pragma unroll
    for (int i = 0; i < 2 * Tile::blocks; i += Tile::cluster) {
      int const box = i + rank_;
      std::uint8_t* const there = to + box * 64 * 128;
      if constexpr (Tile::cluster == 1) {
        cute::SM90_TMA_LOAD_3D::copy(map, &filled, weights_hint_, there, k, tile.out + box * 64,
                                     tile.expert);
      } else {
        constexpr std::uint16_t both = 3;
        cute::SM90_TMA_LOAD_MULTICAST_3D::copy(map, &filled, both, weights_hint_, there, k,
                                               tile.out + box * 64, tile.expert);
      }
    }
  }
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
  int rank_;
  std::uint64_t weights_hint_;
  ring_place<Tile::stages> at_;
};

}  // namespace moe64::cuda
