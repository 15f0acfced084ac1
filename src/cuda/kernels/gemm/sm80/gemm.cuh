#pragma once

#include "cuda/kernels/device/expert_place.cuh"
#include "cuda/kernels/gemm/expert_tiles.cuh"
#include "cuda/kernels/gemm/sm80/codes.cuh"
#include "cuda/kernels/gemm/sm80/gemm.hpp"
#include "cuda/kernels/gemm/sm80/shape.cuh"

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
template <class Shape, bool Deep, codes_kind Codes>
class gemm_copies {
 public:
  __device__ gemm_copies(grouped_gemm_mma_parameters const& p, expert_tiles const& tiles,
                         std::uint8_t* shared)
      : p_(p), tiles_(tiles), shared_(shared), number_(blockIdx.x) {
    if (number_ < tiles_.count()) open_part(0);
  }

  /// Begin the copies of the next stage, if there is one.
  __device__ void issue() {
    if constexpr (quantized) store_scales();
    if (number_ < tiles_.count()) {
      shared_address const to = shared_address_of(shared_) + slot_ * Shape::stage_bytes(quantized);
      int const depth = within(k_left_, stage_depth);
      copy_tile<Shape::threads, Shape::rows, 8, true>(to, {x_, Shape::threads / 8 * p_.x_row_bytes},
                                                      {x_rows_, depth * 2});
      copy_weights(to + Shape::x_bytes, depth);
      if constexpr (quantized) load_scales();
      advance();
    }
    commit_copies();
    slot_ = slot_ + 1 == Shape::stages ? 0 : slot_ + 1;
  }

 private:
  static constexpr bool quantized = Codes != codes_kind::none;
  /// The tile as it lies in memory: lines of numbers.
  static constexpr int lines = Deep ? Shape::outs : stage_depth;
  static constexpr int line_numbers = Deep ? stage_depth : Shape::outs;
  static constexpr int scales_each = Shape::most_scales / Shape::threads;

  [[nodiscard]] __device__ mma_weights const& weights() const { return p_.weights[part_]; }
  [[nodiscard]] __device__ bool packed() const {
    return Codes != codes_kind::e4m3 && is_packed(p_.code);
  }
  [[nodiscard]] __device__ int code_bits() const { return !quantized ? 16 : packed() ? 4 : 8; }

  /// Tile number_, its stages of one part of k.
  __device__ void open_part(int k_part) {
    gemm_place const place(p_, tiles_.at(number_), Shape::outs);
    part_ = p_.k_parts == 2 ? k_part : place.part;
    k_left_ = p_.k_part;
    x_rows_ = within(place.at.rows, Shape::rows);
    n_count_ = within(p_.n_part - place.n_begin, Shape::outs);
    std::uint8_t const* const x =
        p_.x + place.at.row_begin * p_.x_row_bytes + k_part * p_.k_part * 2;
    x_ = chunks_of_thread<Shape::threads, 8>(x, p_.x_row_bytes).first;
    index_t const line = weights().line_bytes;
    index_t const matrix = readable_place(weights().at.values, place.at.expert);
    std::uint8_t const* const values = weights().values + matrix * weights().expert_bytes +
                                       place.n_begin * (Deep ? line * 8 : code_bits()) / 8;
    with_line_chunks([&](auto chunks) {
      values_ = chunks_of_thread<Shape::threads, chunks.value>(values, line).first;
    });
    if constexpr (quantized) open_scales(place);
  }

  __device__ void advance() {
    x_ += stage_depth * 2;
    values_ += Deep ? stage_depth * code_bits() / 8 : stage_depth * weights().line_bytes;
    k_left_ -= stage_depth;
    if constexpr (quantized) advance_scales();
    if (k_left_ > 0) return;
    if (p_.k_parts == 2 && part_ == 0) return open_part(1);
    number_ += gridDim.x;
    if (number_ < tiles_.count()) open_part(0);
  }

  /// body(chunks of a line).
  template <class Body>
  __device__ void with_line_chunks(Body const& body) const {
    if constexpr (!quantized) {
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
      copy_tile<Shape::threads, lines, chunks.value, !quantized>(
          to, {values_, Shape::threads / chunks.value * weights().line_bytes}, there);
    });
  }

  // Scales have many types and cannot be copied as they are: each thread loads some of a stage
  // (scale (n, k) of it has number k * scales_n + n), and they wait in registers until the next
  // stage is issued.

  __device__ void open_scales(gemm_place const& place) {
    mma_scale_grid const& grid = p_.grid;
    int const first_n = thread_number() % grid.scales_n;
    int const first_k = thread_number() >> grid.log_scales_n;
    index_t const n =
        first_n + (grid.scales_n > 1 ? place.n_begin >> grid.shift_n
                                     : place.n_begin / Shape::outs / grid.tiles_per_scale);
    scale_ = readable_place(weights().at.scales, place.at.expert) * weights().scale_expert +
             n * weights().scale_n + first_k * weights().scale_k;
    // Threads without a scale are past the end.
    scale_k_ = n < grid.limit_n ? first_k : grid.limit_k;
    stages_left_ = grid.stages_per_scale;
    global_ = weights().global == nullptr
                  ? 1.0F
                  : weights().global[place.at.expert * weights().global_expert];
    if (p_.placed && is_lost(weights().at, place.at.expert)) global_ = not_a_number();
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
    int const step = Shape::threads >> grid.log_scales_n;  // along k, to this thread's next scale
#pragma unroll
    for (int i = 0; i < scales_each; ++i) {
      pending_[i] = 0;
      if (i * step >= grid.scales_k) continue;
      bool const wanted = (thread_number() >> grid.log_scales_n) + i * step < grid.scales_k;
      if (!wanted || scale_k_ + i * step >= grid.limit_k) continue;
      pending_[i] = load_code(grid.type, weights().scales, scale_ + i * step * weights().scale_k);
    }
    pending_slot_ = slot_;
    pending_global_ = global_;
  }
  __device__ void store_scales() {
    if (pending_slot_ < 0) return;
    auto* const to = reinterpret_cast<float*>(shared_ + pending_slot_ * Shape::stage_bytes(true) +
                                              Shape::x_bytes + Shape::code_bytes);
#pragma unroll
    for (int i = 0; i < scales_each; ++i) {
      if (i * Shape::threads >= p_.grid.scales_n * p_.grid.scales_k) break;
      float const scale = scale_of_code(p_.grid.type, pending_[i]);
      to[threadIdx.x + i * Shape::threads] =
          p_.grid.global_divides ? __fdiv_rn(scale, pending_global_) : scale * pending_global_;
    }
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
  float pending_global_;
  std::uint32_t pending_[scales_each];  ///< as stored: nobody waits for them here
  int pending_slot_ = -1;
};

/// Codes of a stage to 16-bit numbers, a run of each thread at a time, and that in three pieces:
/// they are taken between the products of the stage before, so that both kinds of units are busy.
template <class Pair, class Shape, bool Deep, codes_kind Codes>
class gemm_decoder {
  static_assert(Codes == codes_kind::none || Shape::outs == mma_code_outs);

 public:
  __device__ explicit gemm_decoder(grouped_gemm_mma_parameters const& p) : p_(p) {}

  /// Run and piece `number` of [0, pieces), from stage `codes` to tile `to`; of the numbers along k
  /// `depth` exist.
  __device__ void decode(std::uint8_t const* codes, std::uint8_t* to, int number, int depth) {
    int const run = number / 3;
    if (number % 3 == 0) {
      load(codes, thread_number() + run * Shape::threads);
      scale_ = scales_of(codes)[scale_index(line_of(run), along())];
    } else {
      store_half(codes, to, run, number % 3 == 2, depth);
    }
  }

 private:
  static constexpr int lines = Deep ? Shape::outs : stage_depth;
  static constexpr int line_runs = (Deep ? stage_depth : Shape::outs) / code_run;
  static constexpr int runs = lines * line_runs / Shape::threads;
  // One run of each thread is a number of whole lines, so its runs lie at the same place of theirs.
  static_assert(runs * Shape::threads == lines * line_runs &&
                Shape::threads % (8 * line_runs) == 0);

 public:
  static constexpr int pieces = 3 * runs;

 private:
  [[nodiscard]] static __device__ int line_of(int run) {
    return thread_number() / line_runs + run * (lines / runs);
  }
  [[nodiscard]] static __device__ int along() { return thread_number() % line_runs * code_run; }
  [[nodiscard]] static __device__ float const* scales_of(std::uint8_t const* codes) {
    return reinterpret_cast<float const*>(codes + Shape::code_bytes);
  }
  /// Of number `at` of a line.
  [[nodiscard]] __device__ int scale_index(int line, int at) const {
    int const n = Deep ? line : at, k = Deep ? at : line;
    return (k >> p_.grid.shift_k) * p_.grid.scales_n + (n >> p_.grid.shift_n);
  }

  [[nodiscard]] __device__ dtype type() const {
    return Codes == codes_kind::e4m3 ? dtype::e4m3 : p_.code;
  }
  __device__ void load(std::uint8_t const* codes, int run) {
    if (is_packed(type())) {
      uint2 const words = *reinterpret_cast<uint2 const*>(codes + run * (code_run / 2));
      codes_ = {{words.x, words.y, 0, 0}};
    } else {
      uint4 const words = *reinterpret_cast<uint4 const*>(codes + run * code_run);
      codes_ = {{words.x, words.y, words.z, words.w}};
    }
  }

  /// One of the two chunks of the run. Where lines are long, every other group of four threads
  /// begins with the second, so that eight threads never meet in a bank.
  __device__ void store_half(std::uint8_t const* codes, std::uint8_t* to, int run, bool second,
                             int depth) const {
    if (line_runs > 4 && (thread_number() & 4) != 0) second = !second;
    half_run const numbers = halves_of(type(), codes_, second);
    std::uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 pair = f16_pair::numbers(numbers.pair[i]);
      if constexpr (Codes == codes_kind::careful) {
        int const at = along() + 2 * i + (second ? 8 : 0);
        scale_carefully(codes, line_of(run), at, depth, pair);
      } else {
        pair.x *= scale_;
        pair.y *= scale_;
      }
      out[i] = Pair::of(pair.x, pair.y);
    }
    int const line = thread_number() / line_runs;
    int const chunk = 2 * (thread_number() % line_runs) + (second ? 1 : 0);
    int const at = line * line_runs * 2 + (chunk ^ (line % 8));
    auto* const tile = reinterpret_cast<uint4*>(to) + run * (lines / runs) * line_runs * 2;
    tile[at] = {out[0], out[1], out[2], out[3]};
  }

  /// Each number by its own scale; behind the end zero, not zero times a scale that may be no
  /// number.
  __device__ void scale_carefully(std::uint8_t const* codes, int line, int at, int depth,
                                  float2& pair) const {
    float const* const scales = scales_of(codes);
    pair.x *= scales[scale_index(line, at)];
    pair.y *= scales[scale_index(line, at + 1)];
    if ((Deep ? at : line) >= depth) pair.x = 0.0F;
    if ((Deep ? at + 1 : line) >= depth) pair.y = 0.0F;
  }

  grouped_gemm_mma_parameters const& p_;
  code_words codes_;
  float scale_;
};

}  // namespace moe64::cuda
