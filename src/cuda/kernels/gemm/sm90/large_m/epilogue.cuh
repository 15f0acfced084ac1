#pragma once

#include "cuda/kernels/gemm/sm90/large_m/accumulators.cuh"
#include "cuda/kernels/gemm/sm90/tma.cuh"

#include <cute/arch/copy_sm90.hpp>

/// The epilogue: row scales and bias, one rounding, staged in shared memory by STSM, and from there
/// to y: by warps in lines of 64 outputs, or a whole sub-tile by a TMA store, which reads it while
/// the next tile runs.
namespace moe64::cuda {

/// Row scales and bias of tail rows by 64 outputs, operand A, from `out` of the tile on.
template <int TileOuts>
__device__ __forceinline__ void apply_tail_terms(output_terms<TileOuts> const& terms, int out,
                                                 float (&acc)[max_tail_rows / 2]) {
  out += thread_index::warp() * 16 + thread_index::lane() / 4;
#pragma unroll
  for (int i = 0; i < max_tail_rows / 2; ++i) acc[i] = terms.of(out + i % 4 / 2 * 8, acc[i]);
}

__device__ inline std::uint16_t* y_at(sm90_gemm_parameters const& p, gemm_tile const& tile, int row,
                                      int out) {
  return static_cast<std::uint16_t*>(p.y.data) + (tile.row + index_t{row}) * p.y.stride[0] +
         tile.part * p.n_part + out;
}

/// `Rows` of the rows of a warp, by 64 outputs. `acc` begins with the first that the thread, which
/// is `lane`, has of them.
template <class Tile, int Rows>
__device__ __forceinline__ void stage_y(float const* acc, bool bf16, int lane,
                                        std::uint8_t* buffer) {
  // Four 8 x 8 matrices with neighbouring outputs: rows 0 of a thread, then its rows 8.
#pragma unroll
  for (int first = 0; first < Rows; first += 8) {
#pragma unroll
    for (int i = 0; i < Tile::y_cols; i += 32) {
      float const* const s = acc + i / 2 + first / 4;
      auto& place = *reinterpret_cast<cute::uint128_t*>(
          buffer + swizzled_place(first + lane % 8, i / 8 + lane / 8));
      cute::SM90_U32x4_STSM_N::copy(packed(s[0], s[1], bf16), packed(s[4], s[5], bf16),
                                    packed(s[8], s[9], bf16), packed(s[12], s[13], bf16), place);
    }
  }
}

/// A sub-tile from `row` of the tile on, by all its outputs, by TMA, which drops those that a part
/// has not; by the whole warpgroup after await_tma_store(). Returns false, and has done nothing,
/// where some of the rows are not there.
template <class Tile>
__device__ __forceinline__ bool store_by_tma(large_m_consumer<Tile> const& thread,
                                             gemm_tile const& tile, bool bf16, int row,
                                             float const (&acc)[Tile::outs / 2]) {
  sm90_gemm_parameters const& p = thread.p;
  if (!p.y_vectors || row + sub_tile_rows > tile.rows) return false;
  int const warp = thread_index::warp(), lane = thread_index::lane();
  std::uint8_t* const first = thread.memory.y[thread.warpgroup * 4];
#pragma unroll
  for (int i = 0; i < Tile::outs / Tile::y_cols; ++i) {
    stage_y<Tile, Tile::warp_rows>(
        acc + i * Tile::y_cols / 2, bf16, lane,
        first + i * Tile::tma_box_bytes + warp * Tile::warp_rows * Tile::y_cols * 2);
  }
  cute::tma_store_fence();
  thread.sync_warpgroup();
  bool const elected = cute::elect_one_sync() != 0;  // always the same lane, which then waits
  if (warp == 0 && elected) {
#pragma unroll
    for (int i = 0; i < Tile::outs / Tile::y_cols; ++i) {
      if (tile.out + i * Tile::y_cols >= p.n_part) break;
      cute::SM90_TMA_STORE_3D::copy(&p.y_map, first + i * Tile::tma_box_bytes,
                                    tile.out + i * Tile::y_cols, tile.part, tile.row + row);
    }
    cute::tma_store_arrive();
  }
  return true;
}

/// Tail rows, from `row` of the tile on, by 64 outputs, operand A, from `out` of it on.
template <class Tile>
__device__ __forceinline__ void store_tail(large_m_consumer<Tile> const& thread,
                                           gemm_tile const& tile, bool bf16, int row, int out,
                                           float const (&acc)[max_tail_rows / 2]) {
  int const lane = thread_index::lane(), warp = thread_index::warp();
  std::uint8_t* const buffer = thread.memory.y[thread.warpgroup * 4 + warp];
  // Four 8 x 8 matrices, transposed: rows 0 by outputs 0 and 8 of the warp's 16, rows 8 by the
  // same.
  std::uint8_t* const to = buffer + swizzled_place(lane % 8, lane / 8);
  std::uint8_t const* const from = buffer + swizzled_place(lane / 2 % 8, lane / 16 * 2 + lane % 2);
  out += tile.out + warp * 16 + lane % 2 * 8;
  row += lane / 2;
#pragma unroll
  for (int first = 0; first < max_tail_rows; first += 16) {
    float const* const s = acc + first / 2;
    cute::SM90_U16x8_STSM_T::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16),
                                  packed(s[4], s[5], bf16), packed(s[6], s[7], bf16),
                                  *reinterpret_cast<cute::uint128_t*>(to));
    __syncwarp();
    if (row + first < tile.rows && out < thread.p.n_part) {
      store_outputs(thread.p, from, y_at(thread.p, tile, row + first, out), out);
    }
    __syncwarp();
  }
}

/// A sub-tile from `row` of the tile on, outputs from `out` of it on: by each warp y_rows of its
/// rows by 64 outputs at a time, of which a thread then has 8 outputs of every fourth row.
template <class Tile, int Own, bool Shared, bool Tail>
template <int Outs>
__device__ void large_m_accumulators<Tile, Own, Shared, Tail>::store_by_warps(
    gemm_tile const& tile, bool bf16, int row, int out, float (&acc)[Outs / 2]) {
  constexpr int cols = Tile::y_cols, rows_per_store = 32 / (cols / 8),
                stores = Tile::y_rows / rows_per_store;
  int const lane = thread_index::lane(), warp = thread_index::warp();
  int const first = lane / (cols / 8), vec8 = lane % (cols / 8);
  std::uint8_t* const buffer = memory_.y[warpgroup_ * 4 + warp];
  row += warp * Tile::warp_rows;
  out += tile.out;
  bool const whole = p_.y_vectors && row + Tile::warp_rows <= tile.rows && out + Outs <= p_.n_part;
  row += first;
  out += vec8 * 8;
  std::uint16_t* y = y_at(p_, tile, row, out);
  index_t const step = rows_per_store * p_.y.stride[0];
#pragma unroll
  for (int col = 0; col < Outs; col += cols) {
    std::uint16_t* to = y;
#pragma unroll
    for (int done = 0; done < Tile::warp_rows; done += Tile::y_rows) {
      stage_y<Tile, Tile::y_rows>(acc + col / 2 + done / 4, bf16, lane, buffer);
      __syncwarp();
      if (whole) {
        uint4 values[stores];
#pragma unroll
        for (int i = 0; i < stores; ++i) {
          values[i] = *reinterpret_cast<uint4 const*>(
              buffer + swizzled_place(i * rows_per_store + first, vec8));
        }
#pragma unroll
        for (int i = 0; i < stores; ++i, to += step) store_vec8(to, values[i]);
      } else if (out < p_.n_part) {
#pragma unroll 1
        for (int i = 0; i < Tile::y_rows; i += rows_per_store, to += step) {
          if (row + done + i >= tile.rows) break;
          store_outputs(p_, buffer + swizzled_place(i + first, vec8), to, out);
        }
      }
      __syncwarp();
    }
    out += cols;
    y += cols;
  }
}

/// Outputs from `first` on, a column of each 8 and the next, are this thread's.
template <class Tile, int Own, bool Shared, bool Tail>
template <int Outs>
__device__ __forceinline__ void large_m_accumulators<Tile, Own, Shared, Tail>::apply_terms(
    int first, float (&acc)[Outs / 2]) const {
#pragma unroll
  for (int i = 0; i < Outs / 2; ++i) {
    acc[i] = memory_.terms.of(first + i / 4 * 8 + i % 2, acc[i]);
  }
}

template <class Tile, int Own, bool Shared, bool Tail>
__device__ void large_m_accumulators<Tile, Own, Shared, Tail>::finish(gemm_tile const& tile) {
  if (!has_output_terms(p_, tile)) return;
  int const column = thread_index::lane() % 4 * 2;
#pragma unroll
  for (int i = 0; i < Own; ++i) apply_terms<Tile::outs>(column, own_[i]);
  if constexpr (Shared) apply_terms<64>(warpgroup_ * 64 + column, shared_);
  if constexpr (Tail) apply_tail_terms(memory_.terms, warpgroup_ * 64, tail_);
}

template <class Tile, int Own, bool Shared, bool Tail>
__device__ void large_m_accumulators<Tile, Own, Shared, Tail>::store(gemm_tile const& tile) {
  bool const bf16 = p_.y.type == dtype::bf16;
  if constexpr (Tile::tma_store) {
    thread_.await_tma_store();
    if constexpr (Own == 1) {
      if (store_by_tma(thread_, tile, bf16, warpgroup_ * sub_tile_rows, own_[0])) return;
    }
  }
#pragma unroll
  for (int i = 0; i < Own; ++i) {
    store_by_warps<Tile::outs>(tile, bf16, (warpgroup_ * Own + i) * sub_tile_rows, 0, own_[i]);
  }
  if constexpr (Shared) store_by_warps<64>(tile, bf16, shared_row, warpgroup_ * 64, shared_);
  if constexpr (Tail) store_tail(thread_, tile, bf16, tail_row, warpgroup_ * 64, tail_);
}

}  // namespace moe64::cuda
