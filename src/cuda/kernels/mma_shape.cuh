#pragma once

#include "cuda/kernels/mma_tile.cuh"

namespace moe64::cuda {

/// How a block computes a tile: its extents, those of a warp's part, and the stages of operands in
/// shared memory.
template <int Rows, int Outs, int WarpRows, int WarpOuts, int Stages>
struct gemm_shape {
  static constexpr int rows = Rows, outs = Outs;
  static constexpr int warp_rows = WarpRows, warp_outs = WarpOuts;
  static constexpr int stages = Stages;
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

using shape_few = gemm_shape<16, 128, 16, 32, 5>;
using shape_some = gemm_shape<64, 128, 32, 64, 4>;
using shape_many = gemm_shape<128, 256, 64, 64, 4>;

/// Where a warp's part of a tile begins.
template <class Shape>
struct warp_place {
  int row, out;

  __device__ warp_place() {
    int const warp = static_cast<int>(threadIdx.x) / 32;
    row = warp % Shape::warps_along_rows * Shape::warp_rows;
    out = warp / Shape::warps_along_rows * Shape::warp_outs;
  }
};

}  // namespace moe64::cuda
