#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_decode_sums.cuh"

#include <cute/arch/copy_sm90.hpp>

/// From sums to y.
namespace moe64::cuda {

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
  // Always the same lane, which later waits for what it handed over.
  bool const elected = cute::elect_one_sync() != 0;
  if (!elected || warp_number() % 4 != 0) return;
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
