#pragma once

#include "cuda/kernels/gemm/sm90/mixed/gemm.hpp"
#include "cuda/kernels/gemm/sm90/registers.cuh"
#include "cuda/kernels/gemm/sm90/swap_ab/stage.cuh"

/// Codes by numbers: as in sm90_swap_ab_gemm.cuh a warp finds tiles, one has the copy engine fill
/// stages, one brings scales, and groups of four warps decode, multiply and add.
namespace moe64::cuda {

/// Which instructions multiply. Those of groups of four warps take as long for 8 rows as for 128
/// when their left operand comes from registers; few rows are better off with those of one warp,
/// which give the same bits.
enum class mixed_mma { of_groups, of_warps };

/// Codes of weights: how many bits they have, and how many scales come at a time for 128 outputs.
struct eight_bit_codes {
  static constexpr int bits = 8, scales = 128, scale_slots = 2;
};
struct four_bit_codes {
  static constexpr int bits = 4, scales = 8 * 128, scale_slots = 4;
};

/// A tile of 64 outputs for each of two groups and up to Rows rows, in `Halves` products of equal
/// width. Two blocks of threads that are a pair have the same rows and neighbouring outputs, and
/// each copies half of the rows for both.
template <class Left, class Codes, int Rows, int Halves, int StageK, int Stages, bool Pair,
          mixed_mma Products>
struct mixed_tile {
  using left = Left;
  using codes = Codes;
  static constexpr int groups = 2, rows = Rows, halves = Halves, stages = Stages;
  static constexpr mixed_mma products = Products;
  static constexpr bool transposed = false;
  /// A thread has two outputs of each 16, that far apart.
  static constexpr int out_step = 8;
  static constexpr int scale_slots = Codes::scale_slots;  ///< for chunks of scales
  static constexpr int cluster = Pair ? 2 : 1;
  static constexpr int outs = 64 * groups;
  static constexpr int threads = 128 * (groups + 1);
  /// Blocks of threads on a multiprocessor: where products are those of warps, while one waits for
  /// shared memory or for its products, the other decodes.
  static constexpr int blocks_each = Products == mixed_mma::of_warps ? 2 : 1;
  /// Along k: a stage, of which panels of 64 numbers are multiplied at a time, 16 in each step.
  static constexpr int stage_k = StageK, panel_k = 64, panels = StageK / panel_k, steps = 4;
  static constexpr int line_bytes = StageK * Codes::bits / 8;  ///< codes of an output
  static constexpr int weight_bytes = outs * line_bytes, panel_bytes = Rows * 128;
  static constexpr int stage_bytes = weight_bytes + panels * panel_bytes;
  /// Scales of groups are many: two warps bring them.
  static constexpr int scale_warps = Codes::bits == 4 ? 2 : 1;
  /// Whether a warp of its own brings the factor of a low-rank term ahead of its use.
  static constexpr bool low_rank_ahead = Products == mixed_mma::of_groups && scale_warps == 1;
  /// y is laid out in memory of the group's own, that many rows of it, and, what has no room there,
  /// in the group's share of the tile's last stage, once all have multiplied that.
  static constexpr int own_rows = Rows <= 32 ? Rows : Rows / 2;
  static constexpr int stage_share = stage_bytes / groups;
  static_assert(stage_share % 1024 == 0 && (Rows - own_rows) * 128 <= stage_share);
  static_assert(Rows % (8 * Halves) == 0 && Rows / 8 / cluster < 32);
  static_assert(StageK == 64 || StageK == 128);
};

/// The same with weights whose outputs are contiguous. Their codes come to a thread in pairs of
/// neighbouring outputs.
template <class Tile>
struct transposed_tile : Tile {
  static constexpr bool transposed = true;
  static constexpr int out_step = 1, scale_slots = 4;
};

/// Scales of a tile come in chunks: of that many blocks along k, for each block of 128 outputs, or
/// one for each output; transposed: of that many numbers along k. Those of groups: of 128 numbers
/// along k, [group][output].
inline constexpr int scale_chunk = 128;
/// The factor of a low-rank term comes 16 along k at a time, while the tile before is multiplied.
inline constexpr int low_rank_step = 16, low_rank_slots = 1;

template <class Tile>
struct mixed_memory {
  alignas(1024) std::uint8_t stage[Tile::stages][Tile::stage_bytes];
  alignas(1024) std::uint8_t out[Tile::groups][Tile::own_rows * 128];
  float scale[Tile::scale_slots][Tile::codes::scales];
  float low_rank[low_rank_slots][low_rank_step][Tile::low_rank_ahead ? Tile::outs : 1];
  /// Where weights and scales of a tile are, by part of k: a copy for each of those who bring them,
  /// who have no registers for it.
  int matrix[2], scale_place[2];
  gemm_tile tile[tile_slots];
  ring_barriers<Tile::stages> stages;
  ring_barriers<Tile::scale_slots> scales;
  ring_barriers<low_rank_slots> low_ranks;
  ring_barriers<tile_slots> tiles;
  shared_barrier last_multiplied;  ///< the last stage of a tile, by all
  expert_tiles::memory tile_sums;
};

/// By one thread: stages of weights and x, in the order in which they are multiplied.
template <class Tile>
class mixed_operand_producer {
 public:
  __device__ mixed_operand_producer(sm90_mixed_parameters const& p, mixed_memory<Tile>& memory)
      : p_(p), memory_(memory), rank_(Tile::cluster == 1 ? 0 : rank_in_cluster()) {
    using cute::TMA::CacheHintSm90;
    weights_hint_ = static_cast<std::uint64_t>(p.evict_first ? CacheHintSm90::EVICT_FIRST
                                                             : CacheHintSm90::EVICT_NORMAL);
  }
  /// `stages`: of a part of k.
  __device__ void load(gemm_tile const& tile, int stages) {
    for (int part = 0; part < (Tile::transposed ? p_.k_parts : 1); ++part) {
      memory_.matrix[part] =
          matrix_coordinate(p_.expert_place[Tile::transposed ? part : tile.part], tile.expert);
    }
    int const rank = static_cast<int>(p_.low_rank.rank);  // narrow-ok: host looked
    for (int k = 0; k < rank; k += Tile::stage_k) load_stage(tile, 0, p_.u, {k, 0});
    for (int part = 0; part < p_.k_parts; ++part) {
      for (int i = 0; i < stages; ++i) {
        int const k = i * Tile::stage_k;
        load_stage(tile, Tile::weight_bytes, p_.x, {k, part});
      }
    }
  }

 private:
  /// Where along k.
  struct depth {
    int k, part;
  };

  __device__ void load_stage(gemm_tile const& tile, int weight_bytes, tensor_map const* rows,
                             depth at) {
    int const eights = tile.eights();
    int const bytes = weight_bytes + Tile::panels * eights * 1024;
    memory_.stages.await_free(at_);
    shared_barrier& filled = memory_.stages.filled[at_.slot];
    cute::set_barrier_transaction_bytes(filled,
                                        static_cast<std::uint32_t>(bytes));  // narrow-ok: stage
    if (weight_bytes > 0) load_weights(tile, at, filled);
    // Of a pair's rows each block copies one half, to both.
    int const half = Tile::cluster == 1 ? eights : (eights + 1) / 2;
    int const first = rank_ == 0 ? 0 : half, count = rank_ == 0 ? half : eights - half;
#pragma unroll
    for (int panel = 0; panel < Tile::panels; ++panel) {
      std::uint8_t* const to =
          memory_.stage[at_.slot] + Tile::weight_bytes + panel * Tile::panel_bytes;
      load_rows(rows, tile.row, first, count, {at.k + panel * 64, at.part}, to);
    }
    at_.next();
  }
  __device__ void load_weights(gemm_tile const& tile, depth at, shared_barrier& filled) const {
    int const part = Tile::transposed ? at.part : tile.part;
    int const k = at.k * Tile::codes::bits / 8;  // bytes
    cute::SM90_TMA_LOAD_3D::copy(&p_.weights[part], &filled, weights_hint_, memory_.stage[at_.slot],
                                 Tile::transposed ? tile.out : k, Tile::transposed ? k : tile.out,
                                 memory_.matrix[Tile::transposed ? at.part : 0]);
  }
  /// `count` eights from eight `done` of the tile on, in boxes of 128 rows down to 8. Rows behind
  /// the tile are of no use, and never reach y.
  __device__ void load_rows(tensor_map const* maps, int row, int done, int count, depth at,
                            std::uint8_t* to) const {
#pragma unroll
    for (int i = 4; i >= 0; --i) {
      if ((8 << i) > Tile::rows || (count >> i & 1) == 0) continue;
      copy(maps[i], row + done * 8, at, to + done * 1024);
      done += 1 << i;
    }
  }
  __device__ void copy(tensor_map const& map, int row, depth at, std::uint8_t* to) const {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    shared_barrier& filled = memory_.stages.filled[at_.slot];
    if constexpr (Tile::cluster == 1) {
      cute::SM90_TMA_LOAD_3D::copy(&map, &filled, hint, to, at.k, at.part, row);
    } else {
      constexpr std::uint16_t both = 3;
      cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, &filled, both, hint, to, at.k, at.part, row);
    }
  }

  sm90_mixed_parameters const& p_;
  mixed_memory<Tile>& memory_;
  int rank_;
  std::uint64_t weights_hint_;
  ring_place<Tile::stages> at_;
};

/// By one warp: the factor V of a low-rank term as f32.
template <class Tile>
class low_rank_producer {
 public:
  __device__ low_rank_producer(sm90_mixed_parameters const& p, mixed_memory<Tile>& memory)
      : p_(p), memory_(memory) {}
  __device__ void load(gemm_tile const& tile) {
    for (index_t k = 0; k < p_.low_rank.rank; k += low_rank_step) {
      memory_.low_ranks.await_free(at_);
      if (p_.low_rank.f32) {
        fill<float>(tile, k);
      } else {
        fill<std::uint16_t>(tile, k);
      }
      arrive(memory_.low_ranks.filled[at_.slot]);
      at_.next();
    }
  }

 private:
  [[nodiscard]] static __device__ float number(float stored) { return stored; }
  [[nodiscard]] static __device__ float number(std::uint16_t stored) {
    return Tile::left::low(stored);
  }

  /// Eight of a lane at once, since memory answers late; zero behind the ends. A warp reads along
  /// what usually is contiguous: k of two outputs; transposed, 32 outputs.
  template <class Stored>
  __device__ void fill(gemm_tile const& tile, index_t k) {
    constexpr int at_once = 8, each_lane = Tile::outs * low_rank_step / 32;
    constexpr int next_out = Tile::transposed ? 0 : 2, next_k = Tile::transposed ? 1 : 0;
    low_rank_operands const& low = p_.low_rank;
    index_t const n_stride = low.n[tile.part], k_stride = low.k[tile.part];
    auto const* const from = static_cast<Stored const*>(low.weights[tile.part]) +
                             tile.expert * low.expert[tile.part] + tile.out * n_stride +
                             k * k_stride;
    int const outs = within(p_.n_part - tile.out, Tile::outs);
    int const depth = within(low.rank - k, low_rank_step);
#pragma unroll 1
    for (int i = 0; i < each_lane; i += at_once) {
      int const lane = lane_number();
      int const out = Tile::transposed ? i / low_rank_step * 32 + lane : i * 2 + lane / 16;
      int const deep = Tile::transposed ? i % low_rank_step : lane % 16;
      Stored const* next = from + out * n_stride + deep * k_stride;
      Stored stored[at_once];
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        bool const there = out + j * next_out < outs && deep + j * next_k < depth;
        stored[j] = there ? *next : Stored{};
        next += next_out * n_stride + next_k * k_stride;
      }
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        memory_.low_rank[at_.slot][deep + j * next_k][out + j * next_out] = number(stored[j]);
      }
    }
  }

  sm90_mixed_parameters const& p_;
  mixed_memory<Tile>& memory_;
  ring_place<low_rank_slots> at_;
};

}  // namespace moe64::cuda
