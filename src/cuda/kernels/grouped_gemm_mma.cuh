#pragma once

#include "cuda/kernels/expert_tiles.cuh"
#include "cuda/kernels/grouped_gemm_mma.hpp"
#include "cuda/kernels/mma_codes.cuh"
#include "cuda/kernels/mma_shape.cuh"

#include <type_traits>

/// y = x W^T per expert on tensor cores (mma.sync). A block walks over tiles; copies of the next
/// stages run ahead of the products, across tiles. Every sum is one chain over k in steps of 16
/// from 0 on, so its bits do not depend on the tile.
namespace moe64::cuda {

/// A tile in terms of the operands.
struct gemm_place {
  tile_place at;
  int part;         ///< of n
  index_t n_begin;  ///< in that part

  __device__ gemm_place(grouped_gemm_mma_parameters const& p, tile_place const& place, int outs)
      : at(place) {
    index_t const tiles = ceil_div(p.n_part, index_t{outs});
    part = at.out_tile < tiles ? 0 : 1;
    n_begin = (at.out_tile - part * tiles) * outs;
  }
};

/// The copies: walks over tiles and stages like the products, some stages ahead of them. Holds
/// little, since registers belong to the sums: what can be read again from the parameters is.
template <class Shape, bool Deep, bool Quantized>
class gemm_copies {
 public:
  __device__ gemm_copies(grouped_gemm_mma_parameters const& p, expert_tiles const& tiles,
                         std::uint8_t* shared)
      : p_(p), tiles_(tiles), shared_(shared), number_(blockIdx.x) {
    if (number_ < tiles_.count()) open_part(0);
  }

  /// Begin the copies of the next stage, if there is one.
  __device__ void issue() {
    if constexpr (Quantized) store_scales();
    if (number_ < tiles_.count()) {
      shared_address const to = shared_address_of(shared_) + slot_ * Shape::stage_bytes(Quantized);
      int const depth = static_cast<int>(min(k_left_, index_t{stage_depth}));
      copy_tile<Shape::threads, Shape::rows, 8, true>(to, {x_, Shape::threads / 8 * p_.x_row_bytes},
                                                      {x_rows_, depth * 2});
      copy_weights(to + Shape::x_bytes, depth);
      if constexpr (Quantized) load_scales();
      advance();
    }
    commit_copies();
    slot_ = slot_ + 1 == Shape::stages ? 0 : slot_ + 1;
  }

 private:
  /// The tile as it lies in memory: lines of numbers.
  static constexpr int lines = Deep ? Shape::outs : stage_depth;
  static constexpr int line_numbers = Deep ? stage_depth : Shape::outs;
  static constexpr int scales_each = Shape::most_scales / Shape::threads;

  [[nodiscard]] __device__ mma_weights const& weights() const { return p_.weights[part_]; }
  [[nodiscard]] __device__ bool packed() const {
    return p_.code == dtype::int4 || p_.code == dtype::fp4;
  }
  [[nodiscard]] __device__ int code_bits() const { return !Quantized ? 16 : packed() ? 4 : 8; }

  /// Tile number_, its stages of one part of k.
  __device__ void open_part(int k_part) {
    gemm_place const place(p_, tiles_.at(number_), Shape::outs);
    part_ = p_.k_parts == 2 ? k_part : place.part;
    k_left_ = p_.k_part;
    x_rows_ = static_cast<int>(place.at.rows);
    n_count_ = static_cast<int>(min(p_.n_part - place.n_begin, index_t{Shape::outs}));
    std::uint8_t const* const x =
        p_.x + place.at.row_begin * p_.x_row_bytes + k_part * p_.k_part * 2;
    x_ = chunks_of_thread<Shape::threads, 8>(x, p_.x_row_bytes).first;
    index_t const line = weights().line_bytes;
    std::uint8_t const* const values = weights().values + place.at.expert * weights().expert_bytes +
                                       place.n_begin * (Deep ? line * 8 : code_bits()) / 8;
    with_line_chunks([&](auto chunks) {
      values_ = chunks_of_thread<Shape::threads, chunks.value>(values, line).first;
    });
    if constexpr (Quantized) open_scales(place);
  }

  __device__ void advance() {
    x_ += stage_depth * 2;
    values_ += Deep ? stage_depth * code_bits() / 8 : stage_depth * weights().line_bytes;
    k_left_ -= stage_depth;
    if constexpr (Quantized) advance_scales();
    if (k_left_ > 0) return;
    if (p_.k_parts == 2 && part_ == 0) return open_part(1);
    number_ += gridDim.x;
    if (number_ < tiles_.count()) open_part(0);
  }

  /// body(chunks of a line).
  template <class Body>
  __device__ void with_line_chunks(Body const& body) const {
    if constexpr (!Quantized) {
      body(std::integral_constant<int, line_numbers / 8>{});
    } else if (packed()) {
      body(std::integral_constant<int, line_numbers / 32>{});
    } else {
      body(std::integral_constant<int, line_numbers / 16>{});
    }
  }

  __device__ void copy_weights(shared_address to, int depth) const {
    int const line = Deep ? depth : n_count_;
    tile_extent const there = {Deep ? n_count_ : depth, (line * code_bits() + 7) / 8};
    with_line_chunks([&](auto chunks) {
      copy_tile<Shape::threads, lines, chunks.value, !Quantized>(
          to, {values_, Shape::threads / chunks.value * weights().line_bytes}, there);
    });
  }

  // Scales have many types and cannot be copied as they are: each thread loads some of a stage
  // (scale (n, k) of it has number k * scales_n + n), and they wait in registers until the next
  // stage is issued.

  __device__ void open_scales(gemm_place const& place) {
    mma_scale_grid const& grid = p_.grid;
    int const first_n = static_cast<int>(threadIdx.x) % grid.scales_n;
    int const first_k = static_cast<int>(threadIdx.x) / grid.scales_n;
    index_t const n =
        first_n + (grid.scales_n > 1 ? place.n_begin >> grid.shift_n
                                     : place.n_begin / Shape::outs / grid.tiles_per_scale);
    scale_ = place.at.expert * weights().scale_expert + n * weights().scale_n +
             first_k * weights().scale_k;
    // Threads without a scale are past the end.
    scale_k_ = n < grid.limit_n ? first_k : grid.limit_k;
    stages_left_ = grid.stages_per_scale;
    global_ = weights().global == nullptr
                  ? 1.0F
                  : weights().global[place.at.expert * weights().global_expert];
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
    int const step = Shape::threads / grid.scales_n;  // along k, to the next scale of this thread
#pragma unroll
    for (int i = 0; i < scales_each; ++i) {
      pending_[i] = 0.0F;
      bool const wanted = static_cast<int>(threadIdx.x) / grid.scales_n + i * step < grid.scales_k;
      if (!wanted || scale_k_ + i * step >= grid.limit_k) continue;
      float const scale =
          load_number(grid.type, weights().scales, scale_ + i * step * weights().scale_k);
      pending_[i] = grid.global_divides ? __fdiv_rn(scale, global_) : scale * global_;
    }
    pending_slot_ = slot_;
  }
  __device__ void store_scales() {
    if (pending_slot_ < 0) return;
    auto* const to = reinterpret_cast<float*>(shared_ + pending_slot_ * Shape::stage_bytes(true) +
                                              Shape::x_bytes + Shape::code_bytes);
#pragma unroll
    for (int i = 0; i < scales_each; ++i) to[threadIdx.x + i * Shape::threads] = pending_[i];
    pending_slot_ = -1;
  }

  grouped_gemm_mma_parameters const& p_;
  expert_tiles const& tiles_;
  std::uint8_t* shared_;
  index_t number_;  ///< of the tile
  int slot_ = 0;

  int part_, x_rows_, n_count_;
  index_t k_left_;
  std::uint8_t const* x_;       ///< first chunk of this thread, as is
  std::uint8_t const* values_;  ///< that of the weights

  index_t scale_, scale_k_, stages_left_;
  float global_;
  float pending_[scales_each];
  int pending_slot_ = -1;
};

/// Codes of a stage to 16-bit numbers, a quarter of them at a time, between the products of the
/// stage before.
template <class Pair, class Shape, bool Deep>
class gemm_decoder {
 public:
  __device__ explicit gemm_decoder(grouped_gemm_mma_parameters const& p) : p_(p) {}

  /// `depth`: numbers along k that exist.
  __device__ void decode(std::uint8_t const* codes, std::uint8_t* to, int quarter,
                         int depth) const {
    static_assert(Shape::outs * stage_depth / code_run == 4 * Shape::threads);
    int const run = static_cast<int>(threadIdx.x) + quarter * Shape::threads;
    constexpr int line_runs = (Deep ? stage_depth : Shape::outs) / code_run;
    int const line = run / line_runs, along = run % line_runs * code_run;
    int const n = Deep ? line : along, k = Deep ? along : line;
    auto const* const scales = reinterpret_cast<float const*>(codes + Shape::code_bytes);

    half_run const numbers = halves_of(p_.code, load(codes, run));
    std::uint32_t out[8];
    bool const one_scale = (Deep ? p_.grid.shift_k : p_.grid.shift_n) >= 4;
    float const scale = scales[scale_index(n, k)];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float2 const pair = f16_pair::numbers(numbers.pair[i]);
      float low = scale, high = scale;
      if (!one_scale) {
        low = scales[Deep ? scale_index(n, k + 2 * i) : scale_index(n + 2 * i, k)];
        high = scales[Deep ? scale_index(n, k + 2 * i + 1) : scale_index(n + 2 * i + 1, k)];
      }
      out[i] = Pair::of(pair.x * low, pair.y * high);
    }
    if (depth < stage_depth) {
      // Zero, not zero times a scale that may be no number.
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        int const at = Deep ? k + 2 * i : k;
        if (at >= depth) out[i] = 0;
        if (Deep && at + 1 == depth) out[i] &= 0xffffU;
      }
    }
    store(to, line, 2 * (along / code_run), out);
  }

 private:
  [[nodiscard]] __device__ code_words load(std::uint8_t const* codes, int run) const {
    if (p_.code == dtype::int4 || p_.code == dtype::fp4) {
      uint2 const words = *reinterpret_cast<uint2 const*>(codes + run * (code_run / 2));
      return {{words.x, words.y, 0, 0}};
    }
    uint4 const words = *reinterpret_cast<uint4 const*>(codes + run * code_run);
    return {{words.x, words.y, words.z, words.w}};
  }

  [[nodiscard]] __device__ int scale_index(int n, int k) const {
    return (k >> p_.grid.shift_k) * p_.grid.scales_n + (n >> p_.grid.shift_n);
  }

  /// Two chunks of a line; every other group of four threads begins with the second, so that eight
  /// threads never meet in a bank.
  __device__ static void store(std::uint8_t* to, int line, int chunk,
                               std::uint32_t const (&run)[8]) {
    constexpr int line_chunks = (Deep ? stage_depth : Shape::outs) / chunk_numbers;
    auto* const tile = reinterpret_cast<uint4*>(to) + line * line_chunks;
    bool const second_first = (chunk & 8) != 0;
    uint4 const first = {run[0], run[1], run[2], run[3]}, second = {run[4], run[5], run[6], run[7]};
    tile[(chunk + (second_first ? 1 : 0)) ^ (line % 8)] = second_first ? second : first;
    tile[(chunk + (second_first ? 0 : 1)) ^ (line % 8)] = second_first ? first : second;
  }

  grouped_gemm_mma_parameters const& p_;
};

}  // namespace moe64::cuda
