#pragma once

#include "cuda/kernels/device/thread_index.cuh"
#include "cuda/kernels/gemm/sm80/mma.cuh"
#include "cuda/kernels/gemm/sm80/tile_config.hpp"

/// Operands of 16 bits in a stage of shared memory: cp.async writes them, ldmatrix reads them as
/// fragments. They lie there in lines along the dimension that is contiguous in memory, in chunks
/// of 16 bytes; chunk c of line l is at c ^ l % 8, so that neither copies nor fragments have bank
/// conflicts.
namespace moe64::cuda {

inline constexpr int chunk_bytes = 16;
/// 16-bit elements of a chunk.
inline constexpr int chunk_elements = 8;

/// The tile of a CTA by its configuration, with what kernels need as constants.
template <mma_tile Tile>
struct mma_tile_layout {
  static constexpr mma_tile_config config = config_of(Tile);
  static constexpr mma_tile tile = Tile;
  static constexpr int rows = config.rows, outs = config.outs, stages = config.stages;
  static constexpr int warp_outs = config.warp_outs;
  static constexpr int warps_along_rows = config.warps_along_rows();
  static constexpr int threads = config.threads(), ctas_per_sm = config.ctas_per_sm;
  /// Of m16n8k16 MMAs, of a warp.
  static constexpr int row_fragments = config.warp_rows / 16, out_fragments = config.warp_outs / 8;
  static_assert(out_fragments % 2 == 0 && stages >= 4);

  static constexpr int x_bytes = config.x_bytes(), weight_bytes = config.weight_bytes();
  static constexpr int code_bytes = config.code_bytes(), most_scales = config.most_scales();
  template <bool Quantized>
  static constexpr int stage_bytes = config.stage_bytes(Quantized);
};

/// Where in a tile a warp's fragments begin. Its fragments of 16 rows alternate with those of the
/// other warps along the rows, so that all of them have less to do when a tile has few rows; its
/// outputs are adjacent.
template <class Tile>
struct warp_place {
  int row, out;

  __device__ warp_place() {
    int const warp = warp_number();
    row = warp % Tile::warps_along_rows * 16;
    out = warp / Tile::warps_along_rows * Tile::warp_outs;
  }

  /// Row fragments that any warp must compute when a tile has `rows` rows.
  [[nodiscard]] static __device__ int live(index_t rows) {
    constexpr int stride = 16 * Tile::warps_along_rows;
    return (within(rows, Tile::rows) + stride - 1) / stride;
  }
};

/// Where a thread's chunks of an operand come from: its first one, and the distance to its next
/// one.
struct chunk_source {
  std::uint8_t const* first;
  index_t next;
};

/// The chunks of one thread when `Threads` threads copy an operand whose lines have `LineChunks`.
template <int Threads, int LineChunks>
__device__ chunk_source chunks_of_thread(std::uint8_t const* operand, index_t line_bytes) {
  int const line = thread_number() / LineChunks;
  int const chunk = thread_number() % LineChunks;
  return {operand + line * line_bytes + chunk * chunk_bytes, Threads / LineChunks * line_bytes};
}

/// What of an operand exists; the remainder of its stage becomes zero and is not read.
struct operand_extent {
  int lines;
  int line_bytes;
};

/// Issues the copies of `Lines` lines.
template <int Threads, int Lines, int LineChunks, bool Swizzled>
__device__ void copy_operand(shared_address to, chunk_source const& from,
                             operand_extent const& there) {
  constexpr int lines_at_once = Threads / LineChunks;
  static_assert(Threads % LineChunks == 0 && Lines % lines_at_once == 0);
  static_assert(!Swizzled || (LineChunks >= 8 && lines_at_once % 8 == 0));
  int const line = thread_number() / LineChunks;
  int const chunk = thread_number() % LineChunks;
  int const place = Swizzled ? chunk ^ (line % 8) : chunk;
  to += static_cast<shared_address>((line * LineChunks + place) * chunk_bytes);
  std::uint8_t const* source = from.first;
  if (there.lines >= Lines && there.line_bytes >= LineChunks * chunk_bytes) {
#pragma unroll
    for (int i = 0; i < Lines / lines_at_once; ++i) {
      copy_async(to + i * Threads * chunk_bytes, source);
      source += from.next;
    }
    return;
  }
  int const bytes = min(chunk_bytes, there.line_bytes - chunk * chunk_bytes);
#pragma unroll
  for (int i = 0; i < Lines / lines_at_once; ++i) {
    bool const live = line + i * lines_at_once < there.lines && bytes > 0;
    // A copy of nothing still needs a valid address.
    copy_async(to + i * Threads * chunk_bytes, live ? source : from.first, live ? bytes : 0);
    source += from.next;
  }
}

/// Fragments of 16 (rows of A, or outputs: columns of B) x 16 (k) by ldmatrix, from lines along k
/// (`KMajor`) or along the other dimension. A warp's fragments are 16 * `Stride` of it apart.
template <bool KMajor, int LineChunks, bool IsA, int Stride>
struct fragment_reader {
  shared_address line;  ///< of this lane, relative to the operand
  int chunk;            ///< of this lane

  /// `first`: row or output at which the warp's fragments begin; a multiple of 16.
  __device__ explicit fragment_reader(int first) {
    int const lane = lane_number();
    // Matrices come in the order of the registers: of A first along the rows, of B first along k.
    int const half = IsA ? lane / 8 % 2 : lane / 16;
    int const k_half = IsA ? lane / 16 : lane / 8 % 2;
    int const at = lane % 8 + 8 * (KMajor ? half : k_half) + (KMajor ? first : 0);
    line = static_cast<shared_address>(at * LineChunks * chunk_bytes);
    chunk = KMajor ? k_half : first / chunk_elements + half;
  }

  /// Fragment `i` of the warp, k from 16 `step` on.
  __device__ void load(std::uint32_t (&to)[4], shared_address operand, int i, int step) const {
    int const lines = 16 * (KMajor ? Stride * i : step);
    int const at = (chunk + 2 * (KMajor ? step : Stride * i)) ^ thread_number() % 8;
    shared_address const from =
        operand + line + static_cast<shared_address>((lines * LineChunks + at) * chunk_bytes);
    if constexpr (KMajor) {
      load_matrices(to, from);
    } else {
      load_matrices_transposed(to, from);
    }
  }
};

}  // namespace moe64::cuda
