#pragma once

#include "cuda/kernels/device/number.cuh"
#include "cuda/kernels/gemm/sm80/accumulators.cuh"

/// What becomes of accumulators: a matrix in memory.
namespace moe64::cuda {

/// A matrix [rows, cols] f32, bf16 or f16 that accumulators are written to, rounded.
struct matrix_output {
  tensor_view const& to;
  index_t row_end, col_end;  ///< nothing is written past these
  bool aligned;              ///< vec8s begin at multiples of 16 bytes

  __device__ matrix_output(tensor_view const& matrix, index_t rows, index_t cols)
      : to(matrix),
        row_end(rows),
        col_end(cols),
        aligned(matrix.stride[1] == 1 && matrix.stride[0] % 8 == 0 &&
                reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0) {}

  /// The accumulators of a warp whose part begins at (row, col).
  template <class Accumulators>
  __device__ void write(Accumulators& of_warp, index_t row, index_t col) const {
    if (to.type == dtype::f32) {
      of_warp.each_pair([&](int r, int c, float first, float second) {
        write_pair(row + r, col + c, first, second);
      });
    } else if (to.type == dtype::bf16) {
      of_warp.each_vec8([](float a, float b) { return bf16_pair::of(a, b); },
                        [&](int r, int c, uint4 vec8) { write_vec8(row + r, col + c, vec8); });
    } else {
      of_warp.each_vec8([](float a, float b) { return f16_pair::of(a, b); },
                        [&](int r, int c, uint4 vec8) { write_vec8(row + r, col + c, vec8); });
    }
  }

 private:
  __device__ void write_pair(index_t row, index_t col, float first, float second) const {
    if (row >= row_end || col >= col_end) return;
    auto* const out = static_cast<float*>(to.data) + offset_of(to, row, col);
    if (aligned && col % 2 == 0 && col + 1 < col_end) {
      *reinterpret_cast<float2*>(out) = {first, second};
    } else {
      out[0] = first;
      if (col + 1 < col_end) out[to.stride[1]] = second;
    }
  }
  __device__ void write_vec8(index_t row, index_t col, uint4 const& vec8) const {
    if (row >= row_end) return;
    auto* const out = static_cast<std::uint16_t*>(to.data) + offset_of(to, row, col);
    if (aligned && col % 8 == 0 && col + 8 <= col_end) {
      *reinterpret_cast<uint4*>(out) = vec8;
      return;
    }
    std::uint32_t const words[4] = {vec8.x, vec8.y, vec8.z, vec8.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (col + i < col_end) {
        out[i * to.stride[1]] = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
      }
    }
  }
};

/// An element f32, bf16 or f16.
__device__ inline float load_float(tensor_view const& tensor, index_t at) {
  if (tensor.type == dtype::f32) return static_cast<float const*>(tensor.data)[at];
  std::uint16_t const code = static_cast<std::uint16_t const*>(tensor.data)[at];
  return tensor.type == dtype::bf16 ? decode_bf16(code) : f16_pair::low(code);
}

}  // namespace moe64::cuda
