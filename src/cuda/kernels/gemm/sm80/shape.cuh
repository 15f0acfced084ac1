#pragma once

#include "cuda/kernels/gemm/sm80/tile.cuh"

namespace moe64::cuda {

/// How a block computes a tile: its extents, those of a warp's part, and the stages of operands in
/// shared memory.
template <int Rows, int Outs, int WarpRows, int WarpOuts, int Stages, int BlocksEach>
struct gemm_shape {
  static constexpr int rows = Rows, outs = Outs;
  static constexpr int warp_rows = WarpRows, warp_outs = WarpOuts;
  static constexpr int stages = Stages, blocks_each = BlocksEach;
  static constexpr int warps_along_rows = Rows / WarpRows;
  static constexpr int threads = 32 * warps_along_rows * (Outs / WarpOuts);
  static constexpr int row_fragments = WarpRows / 16, out_fragments = WarpOuts / 8;
  static_assert(out_fragments % 2 == 0 && Stages >= 4);

  static constexpr int x_bytes = Rows * stage_depth * 2;
  static constexpr int weight_bytes = Outs * stage_depth * 2;  ///< as 16-bit numbers
  static constexpr int most_scales = Outs * 4;                 ///< of a stage
  static constexpr int code_bytes = Outs * stage_depth;

  /// Bytes of a stage, and of everything.
  static constexpr int stage_bytes(bool quantized) {
    return x_bytes + (quantized ? code_bytes + most_scales * 4 : weight_bytes);
  }
  static constexpr int shared_bytes(bool quantized) {
    return stages * stage_bytes(quantized) + (quantized ? 2 * weight_bytes : 0);
  }
};

using shape_few = gemm_shape<16, 128, 16, 32, 5, 2>;
using shape_careful = gemm_shape<32, 128, 32, 32, 4, 2>;
using shape_some = gemm_shape<64, 128, 32, 64, 4, 2>;
/// Codes are decoded once for each tile of rows: more rows, fewer times.
using shape_many_codes = gemm_shape<256, 128, 64, 64, 4, 1>;
using shape_many = gemm_shape<128, 256, 64, 64, 4, 1>;
/// The factors of LoRA have few outputs: what counts is how fast the other operand comes.
using shape_thin = gemm_shape<128, 64, 32, 64, 4, 2>;

/// Which part of a tile is a warp's: fragments of 16 rows, in turn with the warps beside it, so
/// that all of them have less to do when a tile has few rows; and a run of outputs.
template <class Shape>
struct warp_place {
  int row, out;  ///< first ones

  __device__ warp_place() {
    int const warp = warp_number();
    row = warp % Shape::warps_along_rows * 16;
    out = warp / Shape::warps_along_rows * Shape::warp_outs;
  }

  /// Row fragments that any warp must look at when a tile has `rows` rows.
  [[nodiscard]] static __device__ int live(index_t rows) {
    constexpr int stride = 16 * Shape::warps_along_rows;
    return (within(rows, Shape::rows) + stride - 1) / stride;
  }
};

}  // namespace moe64::cuda
