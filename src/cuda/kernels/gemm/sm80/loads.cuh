#pragma once

#include "cuda/kernels/device/expert_place.cuh"
#include "cuda/kernels/gemm/expert_tiles.cuh"
#include "cuda/kernels/gemm/sm80/codes.cuh"
#include "cuda/kernels/gemm/sm80/gemm.hpp"
#include "cuda/kernels/gemm/sm80/stage.cuh"

#include <type_traits>

/// The producer side of the pipeline: cp.async of the next stages, by all threads.
namespace moe64::cuda {

/// A tile in terms of the operands.
struct gemm_place {
  tile_place at;
  int part;         ///< of n
  index_t n_begin;  ///< in that part

  __device__ gemm_place(sm80_gemm_parameters const& p, tile_place const& place, int outs)
      : at(place) {
    index_t const tiles = ceil_div(p.n_part, index_t{outs});
    part = at.out_tile < tiles ? 0 : 1;
    n_begin = (at.out_tile - part * tiles) * outs;
  }
};

/// Walks over tiles and stages as the MMAs do, some stages ahead of them, across tiles. Holds
/// little, since registers belong to the accumulators: what can be read again from the parameters
/// is.
template <class Tile, bool KMajor, mma_weights Weights>
class gemm_loads {
 public:
  __device__ gemm_loads(sm80_gemm_parameters const& p, expert_tiles const& tiles,
                        std::uint8_t* shared)
      : p_(p), tiles_(tiles), shared_(shared), tile_(blockIdx.x) {
    if (tile_ < tiles_.count()) open_part(0);
  }

  /// Issues the copies of the next stage, if there is one.
  __device__ void issue() {
    if constexpr (quantized) store_scales();
    if (tile_ < tiles_.count()) {
      shared_address const to = shared_address_of(shared_) + slot_ * stage_bytes;
      int const k = within(k_left_, stage_k);
      copy_operand<Tile::threads, Tile::rows, 8, true>(to, {x_, Tile::threads / 8 * p_.x_row_bytes},
                                                       {x_rows_, k * 2});
      copy_weights(to + Tile::x_bytes, k);
      if constexpr (quantized) load_scales();
      advance();
    }
    commit_copies();
    slot_ = slot_ + 1 == Tile::stages ? 0 : slot_ + 1;
  }

 private:
  static constexpr bool quantized = Weights != mma_weights::plain;
  static constexpr int stage_bytes = Tile::template stage_bytes<quantized>;
  /// Weights of a stage, in lines that are contiguous in memory.
  static constexpr int lines = KMajor ? Tile::outs : stage_k;
  static constexpr int line_elements = KMajor ? stage_k : Tile::outs;
  static constexpr int scales_each = Tile::most_scales / Tile::threads;

  [[nodiscard]] __device__ mma_weight_operand const& weights() const { return p_.weights[part_]; }
  [[nodiscard]] __device__ bool packed() const {
    return Weights != mma_weights::vec16_scaled_e4m3 && is_packed(p_.code);
  }
  [[nodiscard]] __device__ int code_bits() const { return !quantized ? 16 : packed() ? 4 : 8; }

  /// Of tile tile_ the stages of one part of k.
  __device__ void open_part(int k_part) {
    gemm_place const place(p_, tiles_.at(tile_), Tile::outs);
    part_ = p_.k_parts == 2 ? k_part : place.part;
    k_left_ = p_.k_part;
    x_rows_ = within(place.at.rows, Tile::rows);
    n_count_ = within(p_.n_part - place.n_begin, Tile::outs);
    std::uint8_t const* const x =
        p_.x + place.at.row_begin * p_.x_row_bytes + k_part * p_.k_part * 2;
    x_ = chunks_of_thread<Tile::threads, 8>(x, p_.x_row_bytes).first;
    index_t const line = weights().line_bytes;
    index_t const matrix = readable_place(weights().expert_place.values, place.at.expert);
    std::uint8_t const* const values = weights().values + matrix * weights().expert_bytes +
                                       place.n_begin * (KMajor ? line * 8 : code_bits()) / 8;
    with_line_chunks([&](auto chunks) {
      values_ = chunks_of_thread<Tile::threads, chunks.value>(values, line).first;
    });
    if constexpr (quantized) open_scales(place);
  }

  __device__ void advance() {
    x_ += stage_k * 2;
    values_ += KMajor ? stage_k * code_bits() / 8 : stage_k * weights().line_bytes;
    k_left_ -= stage_k;
    if constexpr (quantized) advance_scales();
    if (k_left_ > 0) return;
    if (p_.k_parts == 2 && part_ == 0) return open_part(1);
    tile_ += gridDim.x;
    if (tile_ < tiles_.count()) open_part(0);
  }

  /// body(chunks of a line).
  template <class Body>
  __device__ void with_line_chunks(Body const& body) const {
    if constexpr (!quantized) {
      body(std::integral_constant<int, line_elements / 8>{});
    } else if (packed()) {
      body(std::integral_constant<int, line_elements / 32>{});
    } else {
      body(std::integral_constant<int, line_elements / 16>{});
    }
  }

  __device__ void copy_weights(shared_address to, int k) const {
    int const line = KMajor ? k : n_count_;
    operand_extent const there = {KMajor ? n_count_ : k, (line * code_bits() + 7) / 8};
    with_line_chunks([&](auto chunks) {
      copy_operand<Tile::threads, lines, chunks.value, !quantized>(
          to, {values_, Tile::threads / chunks.value * weights().line_bytes}, there);
    });
  }

  // Scales have many types and cannot be copied as they are: each thread loads some of a stage
  // (scale (n, k) has the index k * scales_n + n there), and holds them in registers until the next
  // stage is issued.

  __device__ void open_scales(gemm_place const& place) {
    mma_scale_grid const& grid = p_.grid;
    int const first_n = thread_number() % grid.scales_n;
    int const first_k = thread_number() >> grid.log2_scales_n;
    index_t const n =
        first_n + (grid.scales_n > 1 ? place.n_begin >> grid.shift_n
                                     : place.n_begin / Tile::outs / grid.tiles_per_scale);
    scale_ =
        readable_place(weights().expert_place.scales, place.at.expert) * weights().scale_expert +
        n * weights().scale_n + first_k * weights().scale_k;
    // Threads without a scale are past the limit.
    scale_k_ = n < grid.limit_n ? first_k : grid.limit_k;
    stages_left_ = grid.stages_per_scale;
    global_ = weights().global == nullptr
                  ? 1.0F
                  : weights().global[place.at.expert * weights().global_expert];
    if (p_.has_places && is_lost(weights().expert_place, place.at.expert)) global_ = not_a_number();
  }
  __device__ void advance_scales() {
    mma_scale_grid const& grid = p_.grid;
    if (grid.scales_k == 1 && --stages_left_ > 0) return;
    stages_left_ = grid.stages_per_scale;
    scale_ += grid.scales_k * weights().scale_k;
    scale_k_ += grid.scales_k;
  }
  __device__ void load_scales() {
    mma_scale_grid const& grid = p_.grid;
    int const step = Tile::threads >> grid.log2_scales_n;  // along k, to this thread's next scale
#pragma unroll
    for (int i = 0; i < scales_each; ++i) {
      pending_[i] = 0;
      if (i * step >= grid.scales_k) continue;
      bool const wanted = (thread_number() >> grid.log2_scales_n) + i * step < grid.scales_k;
      if (!wanted || scale_k_ + i * step >= grid.limit_k) continue;
      pending_[i] = load_code(grid.type, weights().scales, scale_ + i * step * weights().scale_k);
    }
    pending_slot_ = slot_;
    pending_global_ = global_;
  }
  __device__ void store_scales() {
    if (pending_slot_ < 0) return;
    auto* const to = reinterpret_cast<float*>(shared_ + pending_slot_ * stage_bytes +
                                              Tile::x_bytes + Tile::code_bytes);
#pragma unroll
    for (int i = 0; i < scales_each; ++i) {
      if (i * Tile::threads >= p_.grid.scales_n * p_.grid.scales_k) break;
      float const scale = scale_of_code(p_.grid.type, pending_[i]);
      to[threadIdx.x + i * Tile::threads] =
          p_.grid.global_divides ? __fdiv_rn(scale, pending_global_) : scale * pending_global_;
    }
    pending_slot_ = -1;
  }

  sm80_gemm_parameters const& p_;
  expert_tiles const& tiles_;
  std::uint8_t* shared_;
  index_t tile_;  ///< index of the tile
  int slot_ = 0;

  int part_, x_rows_, n_count_;
  index_t k_left_;
  std::uint8_t const* x_;       ///< first chunk of this thread, as is
  std::uint8_t const* values_;  ///< that of the weights

  index_t scale_, scale_k_, stages_left_;
  float global_;
  float pending_global_;
  std::uint32_t pending_[scales_each];  ///< as stored: here nothing waits for their loads
  int pending_slot_ = -1;
};

}  // namespace moe64::cuda
