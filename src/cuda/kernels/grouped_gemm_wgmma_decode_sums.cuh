#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_decode_thread.cuh"
#include "cuda/kernels/low_rank.cuh"

#include <cute/arch/copy_sm90.hpp>

namespace moe64::cuda {

/// The sums of one thread of a group of four warps: of outputs `out` and that + 8, of each 8 rows
/// the two from lane % 4 * 2 on.
template <class Tile, int Width>
class decode_sums {
 public:
  __device__ decode_sums() {
#pragma unroll
    for (float& sum : sums_) sum = 0.0F;
  }

  /// The products of all panels of a tile, an even number, in two sets of registers by turns: while
  /// the tensor cores read one, codes of the next panel are decoded into the other.
  __device__ __forceinline__ void add_all(decode_thread<Tile>& thread, int panels) {
    left_numbers even[steps], odd[steps];
    thread.memory.stages.await_filled(thread.stage);
    decode(thread, 0, even);
#pragma unroll 1
    for (int panel = 1;; panel += 2) {
      advance<0>(thread, panel, even, odd);
      if (panel + 1 == panels) break;
      advance<1>(thread, panel + 1, odd, even);
    }
    begin(thread.x(1), odd);
    await_products();
    fence_registers(sums_);
    thread.release(thread.stage.slot);
    thread.stage.next();
    thread.next_scales();
  }

  /// Sums become scaling * u V^T, where u comes in stages of its own and V straight from memory:
  /// ranks are small.
  __device__ __forceinline__ void add_low_rank(decode_thread<Tile>& thread, gemm_tile const& tile) {
    mma_low_rank const& low = thread.p.low_rank;
    int const rank = static_cast<int>(low.rank);  // narrow-ok: host looked
#pragma unroll 1
    for (int k = 0; k < rank; k += 16) {
      low_rank_left left(thread, tile, k);
      int const in_stage = k % Tile::stage_k;
      if (in_stage == 0) thread.memory.stages.await_filled(thread.stage);
      std::uint8_t const* const u = thread.x(in_stage / Tile::panel_k);
#pragma unroll 1
      for (int term = 0; term < low_rank_terms(low); ++term) {
        add_step(u, in_stage % Tile::panel_k / 16, left.take());
      }
      if (in_stage + 16 < Tile::stage_k && k + 16 < rank) continue;
      thread.release(thread.stage.slot);
      thread.stage.next();
    }
#pragma unroll
    for (float& sum : sums_) sum *= low.scaling;
  }

  /// Plus bias, rounded once.
  __device__ void store(decode_thread<Tile>& thread, gemm_tile const& tile);

 private:
  static constexpr int steps = Tile::steps;

  /// What a thread holds of V as the left operand, 16 along k.
  struct low_rank_left {
    float rest[4][2];

    __device__ low_rank_left(decode_thread<Tile> const& thread, gemm_tile const& tile, int k) {
      mma_low_rank const& low = thread.p.low_rank;
      index_t const expert = tile.expert * low.expert[tile.part];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        index_t const n = index_t{tile.out} + thread.out + i / 2 % 2 * Tile::out_step;
        index_t const at = k + thread.lane % 4 * 2 + i / 4 * 8 + i % 2;
        bool const there = n < thread.p.n_part && at < low.rank;
        rest[i / 2][i % 2] =
            there ? low_rank_number<typename Tile::left>(low, tile.part, expert, n, at) : 0.0F;
      }
    }
    __device__ left_numbers take() {
      left_numbers numbers;
#pragma unroll
      for (int i = 0; i < 4; ++i) numbers.pair[i] = take_term<typename Tile::left>(rest[i]);
      return numbers;
    }
  };

  __device__ __forceinline__ void decode(decode_thread<Tile>& thread, int panel,
                                         left_numbers (&to)[steps]) const {
    panel_codes codes;
    thread.read(panel, codes);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[step].pair[i] =
            e4m3_codes::pair<typename Tile::left>(codes.pair[step][i], codes.scale[step][i]);
      }
    }
    // Transposed codes have a scale for each number along k, behind its end zero as they are.
    if constexpr (Tile::transposed) return;
    // Behind the end of k there are no weights: zero, not zero times a scale that may be no number.
    index_t const left = thread.p.k_part - index_t{panel} * Tile::panel_k;
    if (left >= Tile::panel_k) return;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (step * 16 >= left) to[step] = {};
    }
  }

  /// Multiplies panel next - 1, where the thread is, and decodes panel `next`.
  template <int Odd>
  __device__ __forceinline__ void advance(decode_thread<Tile>& thread, int next,
                                          left_numbers (&now)[steps], left_numbers (&then)[steps]) {
    int const slot = thread.stage.slot;
    begin(thread.x(Odd), now);
    constexpr bool last_of_stage = Tile::panels == 1 || Odd == 1;
    if constexpr (last_of_stage) {
      thread.stage.next();
      thread.memory.stages.await_filled(thread.stage);
    }
    decode(thread, next, then);
    await_products();
    if constexpr (last_of_stage) thread.release(slot);
  }
  /// The products of a panel, whose x are at `x`, begin, or are done.
  __device__ __forceinline__ void begin(std::uint8_t const* x, left_numbers (&now)[steps]) {
    if constexpr (Tile::products == decode_products::of_warps) {
      multiply_by_warps(x, now);
    } else {
      multiply_by_group(x, now);
    }
  }
  __device__ __forceinline__ void await_products() const {
    if constexpr (Tile::products == decode_products::of_groups) cute::warpgroup_wait<0>();
  }

  __device__ __forceinline__ void multiply_by_group(std::uint8_t const* x,
                                                    left_numbers (&now)[steps]) {
    fence(now);
    fence_registers(sums_);
    cute::warpgroup_arrive();
#pragma unroll
    for (unsigned step = 0; step < steps; ++step) {
#pragma unroll
      for (int half = 0; half < Tile::halves; ++half) {
        operand_place const right(cute::cast_smem_ptr_to_uint(x + half * Width * 128));
        multiply_registers<typename Tile::left, Width>(now[step], right.along_k(step * 32),
                                                       sums_ + half * (Width / 2),
                                                       std::make_index_sequence<Width / 2>());
      }
    }
    cute::warpgroup_commit_batch();
  }
  /// The products of one step of a panel, by warps, whichever multiply elsewhere: with products of
  /// groups outside of its loop the compiler would not let those in it run ahead.
  __device__ __forceinline__ void add_step(std::uint8_t const* x, int step,
                                           left_numbers const& now) {
    constexpr int rows = Tile::halves * Width;
    int const matrix = lane_number() / 8, row = lane_number() % 8;
#pragma unroll
    for (int first = 0; first < rows; first += 16) {
      bool const both = first + 8 < rows;
      int const at = first + (both ? matrix / 2 * 8 : 0) + row, chunk = step * 2 + matrix % 2;
      std::uint32_t right[4];
      load_matrices(right, shared_address_of(x + at * 128 + (chunk ^ row) * 16));
      multiply_eight(now, first, right);
      if (both) multiply_eight(now, first + 8, right + 2);
    }
  }
  static __device__ __forceinline__ void fence(left_numbers (&left)[steps]) {
#pragma unroll
    for (auto& numbers : left) fence_registers(numbers);
  }

  /// Two steps at a time; of 8 rows that are left over the right operands of both come together.
  __device__ __forceinline__ void multiply_by_warps(std::uint8_t const* x,
                                                    left_numbers const (&now)[steps]) {
    int const lane = lane_number(), matrix = lane / 8, row = lane % 8;
#pragma unroll
    for (int step = 0; step < steps; step += 2) {
#pragma unroll
      for (int first = 0; first < Width; first += 16) {
        bool const both = first + 8 < Width;
        std::uint32_t right[2][4];
#pragma unroll
        for (int i = 0; i < (both ? 2 : 1); ++i) {
          int const chunk = both ? (step + i) * 2 + matrix % 2 : step * 2 + matrix;
          int const at = first + (both ? matrix / 2 * 8 : 0) + row;
          load_matrices(right[i], shared_address_of(x + at * 128 + (chunk ^ row) * 16));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          std::uint32_t const* const r = both ? right[i] : right[0] + i * 2;
          multiply_eight(now[step + i], first, r);
          if (both) multiply_eight(now[step + i], first + 8, r + 2);
        }
      }
    }
  }
  __device__ __forceinline__ void multiply_eight(left_numbers const& left, int first,
                                                 std::uint32_t const* right) {
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = sums_[first / 2 + i];
    Tile::left::multiply(sums, left.pair, right[0], right[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums_[first / 2 + i] = sums[i];
  }

  [[nodiscard]] static __device__ std::uint32_t packed(float a, float b, bool bf16) {
    return bf16 ? bf16_left::of(a, b) : f16_left::of(a, b);
  }
  __device__ void add_bias(decode_thread<Tile> const& thread);
  __device__ void transpose(decode_thread<Tile> const& thread, int first, bool bf16) const;
  __device__ void transpose_pairs(decode_thread<Tile> const& thread, int first, bool bf16) const;
  __device__ void transpose_matrices(decode_thread<Tile> const& thread, int first, bool bf16) const;

  float sums_[Tile::halves * Width / 2];
};

/// Where 8 outputs of a row lie in a buffer of y: as the copy engine swizzles them.
__device__ inline int place_out(int row, int eight) { return row * 128 + (eight ^ (row % 8)) * 16; }

/// Rows [begin, end) of a buffer, by the threads of a group.
template <class Tile>
__device__ void write_rows(decode_thread<Tile> const& thread, gemm_tile const& tile, int first,
                           int begin, int end) {
  auto const& p = thread.p;
  auto* const y = static_cast<std::uint16_t*>(p.y.data);
  std::uint8_t const* const buffer = thread.buffer();
#pragma unroll 1
  for (int i = begin * 8 + thread_number() % 128; i < end * 8; i += 128) {
    int const row = i / 8, out = tile.out + thread.group * 64 + i % 8 * 8;
    if (out >= p.n_part) continue;
    std::uint16_t* const to =
        y + (tile.row + index_t{first + row}) * p.y.stride[0] + tile.part * p.n_part + out;
    auto const* const from = reinterpret_cast<std::uint16_t const*>(buffer + place_out(row, i % 8));
    if (p.y_vectors && out + 8 <= p.n_part) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4 const*>(from);
      continue;
    }
#pragma unroll 1
    for (int j = 0; j < within(p.n_part - out, 8); ++j) to[j] = from[j];
  }
}

/// By one thread: whole eights of rows by the copy engine, which drops outputs that a part has not.
template <class Tile>
__device__ void hand_over(decode_thread<Tile> const& thread, gemm_tile const& tile, int first,
                          int rows) {
  int const out = tile.out + thread.group * 64;
  if (out >= thread.p.n_part) return;
  int row = 0;
#pragma unroll 1
  for (; row + 32 <= rows; row += 32) {
    cute::SM90_TMA_STORE_3D::copy(&thread.p.y_map[1], thread.buffer() + row * 128, out, tile.part,
                                  tile.row + first + row);
  }
#pragma unroll 1
  for (; row + 8 <= rows; row += 8) {
    cute::SM90_TMA_STORE_3D::copy(&thread.p.y_map[0], thread.buffer() + row * 128, out, tile.part,
                                  tile.row + first + row);
  }
}

/// A buffer of rows of y, from row `first` of the tile on; the copy engine reads it while the next
/// tile has begun.
template <class Tile>
__device__ void write_chunk(decode_thread<Tile> const& thread, gemm_tile const& tile, int first) {
  int const rows = within(tile.rows - first, Tile::rows_out);
  bool const by_engine = thread.p.y_vectors;
  write_rows(thread, tile, first, by_engine ? rows / 8 * 8 : 0, rows);
  if (thread_number() % 128 != 0) return;
  if (by_engine) hand_over(thread, tile, first, rows);
  cute::tma_store_arrive();
}

template <class Tile, int Width>
__device__ void decode_sums<Tile, Width>::store(decode_thread<Tile>& thread,
                                                gemm_tile const& tile) {
  if (thread.p.bias[tile.part].present()) add_bias(thread);
  bool const bf16 = thread.p.y.type == dtype::bf16;
#pragma unroll 1
  for (int first = 0; first < tile.rows; first += Tile::rows_out) {
    // What was handed over from this buffer last has been read.
    cute::tma_store_wait<1>();
    thread.await_group();
    // One of them: the registers of a chunk must be known to the compiler.
#pragma unroll
    for (int chunk = 0; chunk < Tile::halves * Width; chunk += Tile::rows_out) {
      if (chunk == first) transpose(thread, chunk, bf16);
    }
    cute::tma_store_fence();
    thread.await_group();
    write_chunk(thread, tile, first);
    thread.turn ^= 1;
  }
}

template <class Tile, int Width>
__device__ void decode_sums<Tile, Width>::add_bias(decode_thread<Tile> const& thread) {
#pragma unroll
  for (int i = 0; i < Tile::halves * Width / 2; ++i) sums_[i] += thread.addend[i / 2 % 2];
}

/// Rows [first, first + rows_out) as rows of y.
template <class Tile, int Width>
__device__ void decode_sums<Tile, Width>::transpose(decode_thread<Tile> const& thread, int first,
                                                    bool bf16) const {
  if constexpr (Tile::transposed) {
    transpose_pairs(thread, first, bf16);
  } else {
    transpose_matrices(thread, first, bf16);
  }
}

/// Two neighbouring outputs are one thread's.
template <class Tile, int Width>
__device__ void decode_sums<Tile, Width>::transpose_pairs(decode_thread<Tile> const& thread,
                                                          int first, bool bf16) const {
  int const lane = thread.lane;
  int const eight = warp_number() % 4 * 2 + lane / 16, within_eight = lane / 4 % 4 * 4;
#pragma unroll
  for (int r = first; r < first + Tile::rows_out && r < Tile::halves * Width; r += 8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int const row = r - first + lane % 4 * 2 + i;
      *reinterpret_cast<std::uint32_t*>(thread.buffer() + place_out(row, eight) + within_eight) =
          packed(sums_[r / 2 + i], sums_[r / 2 + 2 + i], bf16);
    }
  }
}

template <class Tile, int Width>
__device__ void decode_sums<Tile, Width>::transpose_matrices(decode_thread<Tile> const& thread,
                                                             int first, bool bf16) const {
  int const lane = thread.lane;
#pragma unroll
  for (int r = first; r < first + Tile::rows_out && r < Tile::halves * Width; r += 16) {
    // Four 8 x 8 matrices: rows r and r + 8 by outputs 0 and 8 of the warp's 16.
    float const* const s = sums_ + r / 2;
    int const row = r - first + lane / 16 * 8 + lane % 8;
    int const eight = warp_number() % 4 * 2 + lane / 8 % 2;
    auto& to = *reinterpret_cast<cute::uint128_t*>(thread.buffer() + place_out(row, eight));
    if (r + 8 < Tile::halves * Width) {
      cute::SM90_U16x8_STSM_T::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16),
                                    packed(s[4], s[5], bf16), packed(s[6], s[7], bf16), to);
    } else {
      cute::SM90_U16x4_STSM_T::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16), to);
    }
  }
}

}  // namespace moe64::cuda
