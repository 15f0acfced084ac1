#pragma once

#include "cuda/kernels/device/thread_index.cuh"
#include "cuda/kernels/gemm/sm80/mma.cuh"
#include "moe64/index.hpp"

/// Tiles of 16-bit numbers in shared memory: how they are copied there, 16 bytes at a time, and how
/// fragments of tensor-core products are read from them. A tile is stored in rows along the
/// dimension that is contiguous in memory; the 16-byte chunks of row r are exchanged by r % 8, so
/// that neither copies nor fragments meet bank conflicts.
namespace moe64::cuda {

/// Elements of the summed dimension that a stage holds.
inline constexpr int stage_depth = 64;
inline constexpr int chunk_bytes = 16;
/// 16-bit numbers of a chunk.
inline constexpr int chunk_numbers = 8;

/// Where a thread's chunks of a tile come from: its first one, and the distance to its next one.
struct chunk_source {
  std::uint8_t const* first;
  index_t next;
};

/// The chunks of one thread when `Threads` threads copy a tile whose rows have `RowChunks` chunks.
template <int Threads, int RowChunks>
__device__ chunk_source chunks_of_thread(std::uint8_t const* tile, index_t row_bytes) {
  int const row = thread_number() / RowChunks;
  int const chunk = thread_number() % RowChunks;
  return {tile + row * row_bytes + chunk * chunk_bytes, Threads / RowChunks * row_bytes};
}

/// What of a tile exists; the rest becomes zero and is not read.
struct tile_extent {
  int rows;
  int row_bytes;
};

/// Begin to copy a tile of Rows rows.
template <int Threads, int Rows, int RowChunks, bool Exchanged>
__device__ void copy_tile(shared_address to, chunk_source const& from, tile_extent const& there) {
  constexpr int rows_at_once = Threads / RowChunks;
  static_assert(Threads % RowChunks == 0 && Rows % rows_at_once == 0);
  static_assert(!Exchanged || (RowChunks >= 8 && rows_at_once % 8 == 0));
  int const row = thread_number() / RowChunks;
  int const chunk = thread_number() % RowChunks;
  int const place = Exchanged ? chunk ^ (row % 8) : chunk;
  to += static_cast<shared_address>((row * RowChunks + place) * chunk_bytes);
  std::uint8_t const* source = from.first;
  if (there.rows >= Rows && there.row_bytes >= RowChunks * chunk_bytes) {
#pragma unroll
    for (int i = 0; i < Rows / rows_at_once; ++i) {
      copy_async(to + i * Threads * chunk_bytes, source);
      source += from.next;
    }
    return;
  }
  int const bytes = min(chunk_bytes, there.row_bytes - chunk * chunk_bytes);
#pragma unroll
  for (int i = 0; i < Rows / rows_at_once; ++i) {
    bool const live = row + i * rows_at_once < there.rows && bytes > 0;
    // A copy of nothing still wants an address that is one.
    copy_async(to + i * Threads * chunk_bytes, live ? source : from.first, live ? bytes : 0);
    source += from.next;
  }
}

/// Fragments of 16 (numbers of this operand) x 16 (depth) from a tile that is stored in rows along
/// the depth ("deep") or along the numbers. A warp's fragments are 16 * `Stride` numbers apart.
template <bool Deep, int RowChunks, bool Left, int Stride>
struct fragment_reader {
  shared_address row;  ///< of this lane, relative to the tile
  int chunk;           ///< of this lane

  /// `first`: number of the tile at which the warp's own begin; a multiple of 16.
  __device__ explicit fragment_reader(int first) {
    int const lane = lane_number();
    // Matrices come in the order of the registers: for the left operand first along its rows, for
    // the right one first along the depth.
    int const number_half = Left ? lane / 8 % 2 : lane / 16;
    int const depth_half = Left ? lane / 16 : lane / 8 % 2;
    int const line = lane % 8 + 8 * (Deep ? number_half : depth_half) + (Deep ? first : 0);
    row = static_cast<shared_address>(line * RowChunks * chunk_bytes);
    chunk = Deep ? depth_half : first / chunk_numbers + number_half;
  }

  /// Fragment `i` of the warp, depths from 16 `step` on.
  __device__ void load(std::uint32_t (&to)[4], shared_address tile, int i, int step) const {
    int const lines = 16 * (Deep ? Stride * i : step);
    int const at = (chunk + 2 * (Deep ? step : Stride * i)) ^ thread_number() % 8;
    shared_address const from =
        tile + row + static_cast<shared_address>((lines * RowChunks + at) * chunk_bytes);
    if constexpr (Deep) {
      load_matrices(to, from);
    } else {
      load_matrices_transposed(to, from);
    }
  }
};

}  // namespace moe64::cuda
