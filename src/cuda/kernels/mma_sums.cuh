#pragma once

#include "cuda/kernels/mma_tile.cuh"
#include "cuda/kernels/number.cuh"

/// The sums of a warp: its part of a tile, in the registers where tensor cores leave them.
namespace moe64::cuda {

template <int RowFragments, int OutFragments>
struct warp_sums {
  float value[RowFragments][OutFragments][4];

  __device__ void clear() {
    each([](float& sum) { sum = 0.0F; });
  }
  __device__ void scale(float factor) {
    each([&](float& sum) { sum *= factor; });
  }
  template <class Body>
  __device__ void each(Body const& body) {
#pragma unroll
    for (int r = 0; r < RowFragments; ++r) {
#pragma unroll
      for (int n = 0; n < OutFragments; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) body(value[r][n][i]);
      }
    }
  }

  /// body(row, out, first, second) for the pairs of this lane: outputs `out` and `out` + 1 of
  /// `row`, both relative to the warp's part.
  template <class Body>
  __device__ void each_pair(Body const& body) {
    int const lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < RowFragments; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < OutFragments; ++n) {
          body(16 * r + 8 * half + lane / 4, 8 * n + lane % 4 * 2, value[r][n][2 * half],
               value[r][n][2 * half + 1]);
        }
      }
    }
  }
  /// += term(out) for every row.
  template <class Term>
  __device__ void add_to_outs(Term const& term) {
    int const lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < OutFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float const addend = term(8 * n + lane % 4 * 2 + i);
#pragma unroll
        for (int r = 0; r < RowFragments; ++r) {
          value[r][n][i] += addend;
          value[r][n][i + 2] += addend;
        }
      }
    }
  }

  /// += products of a stage, in steps of 16 along the depth. Fragments are loaded one group of
  /// products ahead. between(step) is called once in each step.
  template <class Pair, class LeftReader, class RightReader, class Between>
  __device__ void add_stage(LeftReader const& left, shared_address left_tile,
                            RightReader const& right, shared_address right_tile,
                            Between const& between) {
    constexpr int steps = stage_depth / 16, groups = OutFragments / 2;
    constexpr int ahead = (RowFragments + groups - 1) / groups;
    std::uint32_t a[2][RowFragments][4], b[2][4];
#pragma unroll
    for (int r = 0; r < RowFragments; ++r) left.load(a[0][r], left_tile, r, 0);
    right.load(b[0], right_tile, 0, 0);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int n = 0; n < groups; ++n) {
        int const next = step * groups + n + 1;
        if (next < steps * groups) {
          right.load(b[next % 2], right_tile, next % groups, next / groups);
        }
#pragma unroll
        for (int r = n * ahead; r < (n + 1) * ahead; ++r) {
          if (r < RowFragments && step + 1 < steps) {
            left.load(a[(step + 1) % 2][r], left_tile, r, step + 1);
          }
        }
        if (n == 0) between(step);
        auto const& right_pair = b[(next - 1) % 2];
#pragma unroll
        for (int r = 0; r < RowFragments; ++r) {
          Pair::multiply(value[r][2 * n], a[step % 2][r], right_pair[0], right_pair[1]);
          Pair::multiply(value[r][2 * n + 1], a[step % 2][r], right_pair[2], right_pair[3]);
        }
      }
    }
  }
};

/// Rows of a matrix f32, bf16 or f16 that pairs of neighbouring numbers are written to.
struct pair_output {
  tensor_view const& to;  ///< [rows, cols]
  bool adjacent;          ///< pairs that begin at an even column can be written at once

  __device__ explicit pair_output(tensor_view const& matrix)
      : to(matrix),
        adjacent(matrix.stride[1] == 1 && matrix.stride[0] % 2 == 0 &&
                 reinterpret_cast<std::uintptr_t>(matrix.data) % (bits(matrix.type) / 4) == 0) {}

  /// Numbers (row, col) and (row, col + 1), the second one if it exists.
  __device__ void write(index_t row, index_t col, float first, float second, bool both) const {
    index_t const at = offset_of(to, row, col);
    bool const at_once = adjacent && both && col % 2 == 0;
    if (to.type == dtype::f32) {
      auto* const out = static_cast<float*>(to.data) + at;
      if (at_once) {
        *reinterpret_cast<float2*>(out) = {first, second};
      } else {
        out[0] = first;
        if (both) out[to.stride[1]] = second;
      }
      return;
    }
    std::uint32_t const pair =
        to.type == dtype::bf16 ? bf16_pair::of(first, second) : f16_pair::of(first, second);
    auto* const out = static_cast<std::uint16_t*>(to.data) + at;
    if (at_once) {
      *reinterpret_cast<std::uint32_t*>(out) = pair;
    } else {
      out[0] = static_cast<std::uint16_t>(pair);
      if (both) out[to.stride[1]] = static_cast<std::uint16_t>(pair >> 16);
    }
  }
};

/// A number f32, bf16 or f16.
__device__ inline float load_float(tensor_view const& tensor, index_t at) {
  if (tensor.type == dtype::f32) return static_cast<float const*>(tensor.data)[at];
  std::uint16_t const code = static_cast<std::uint16_t const*>(tensor.data)[at];
  return tensor.type == dtype::bf16 ? decode_bf16(code) : f16_pair::low(code);
}

}  // namespace moe64::cuda
