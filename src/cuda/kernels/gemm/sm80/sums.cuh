#pragma once

#include "cuda/kernels/device/number.cuh"
#include "cuda/kernels/gemm/sm80/tile.cuh"

#include <type_traits>

/// The sums of a warp: its part of a tile, in the registers where tensor cores leave them.
namespace moe64::cuda {

template <int RowFragments, int OutFragments, int RowStride>
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
    int const lane = lane_number();
#pragma unroll
    for (int r = 0; r < RowFragments; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < OutFragments; ++n) {
          body(16 * RowStride * r + 8 * half + lane / 4, 8 * n + lane % 4 * 2,
               value[r][n][2 * half], value[r][n][2 * half + 1]);
        }
      }
    }
  }
  /// += term(out) for every row.
  template <class Term>
  __device__ void add_to_outs(Term const& term) {
    int const lane = lane_number();
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

  /// body(row, out, run) for runs of eight outputs from `out` on, as 16-bit numbers: pair(first,
  /// second) packs two. Four lanes exchange what they hold of four fragments.
  template <class Pack, class Body>
  __device__ void each_run(Pack const& pack, Body const& body) const {
    static_assert(OutFragments % 4 == 0);
    int const lane = lane_number();
#pragma unroll
    for (int r = 0; r < RowFragments; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < OutFragments; n += 4) {
          std::uint32_t run[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            run[i] = pack(value[r][n + i][2 * half], value[r][n + i][2 * half + 1]);
          }
          exchange<1>(run[0], run[1]);
          exchange<1>(run[2], run[3]);
          exchange<2>(run[0], run[2]);
          exchange<2>(run[1], run[3]);
          body(16 * RowStride * r + 8 * half + lane / 4, 8 * (n + lane % 4),
               uint4{run[0], run[1], run[2], run[3]});
        }
      }
    }
  }

  /// Fragments of a stage that are loaded one group of products ahead: those of the left operand
  /// for a step of 16 along the depth, those of the right one for two columns of fragments.
  struct fragments {
    std::uint32_t left[2][RowFragments][4], right[2][4];

    template <class LeftReader, class RightReader>
    __device__ void load_first(LeftReader const& left_reader, shared_address left_tile,
                               RightReader const& right_reader, shared_address right_tile) {
#pragma unroll
      for (int r = 0; r < RowFragments; ++r) left_reader.load(left[0][r], left_tile, r, 0);
      right_reader.load(right[0], right_tile, 0, 0);
    }
  };

  /// += products of a stage whose first fragments are loaded: of the first `live` row fragments
  /// and of `depth` numbers (more than 0) along the depth, both the same for the whole block.
  /// between(step, n) is called before each group of products, of which there are four
  /// steps of OutFragments / 2 each; next() before the last products, when
  /// the tiles are read: it loads the first fragments of the next stage.
  template <class Pair, class LeftReader, class RightReader, class Between, class Next>
  __device__ void add_stage(fragments& f, LeftReader const& left, shared_address left_tile,
                            RightReader const& right, shared_address right_tile, int live,
                            int depth, Between const& between, Next const& next) {
    auto const add = [&](auto rows) {
      add_rows<Pair, rows.value>(f, left, left_tile, right, right_tile, depth, between, next);
    };
    if constexpr (RowFragments > 2) {
      if (live > 2) return add(std::integral_constant<int, RowFragments>{});
    }
    if constexpr (RowFragments > 1) {
      if (live > 1) return add(std::integral_constant<int, 2>{});
    }
    add(std::integral_constant<int, 1>{});
  }

 private:
  template <class Pair, int Rows, class LeftReader, class RightReader, class Between, class Next>
  __device__ void add_rows(fragments& f, LeftReader const& left, shared_address left_tile,
                           RightReader const& right, shared_address right_tile, int depth,
                           Between const& between, Next const& next) {
    constexpr int steps = stage_depth / 16, groups = OutFragments / 2;
    constexpr int ahead = (Rows + groups - 1) / groups;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int n = 0; n < groups; ++n) {
        int const group = step * groups + n;
        if (group + 1 < steps * groups) {
          right.load(f.right[(group + 1) % 2], right_tile, (group + 1) % groups,
                     (group + 1) / groups);
#pragma unroll
          for (int r = n * ahead; r < (n + 1) * ahead; ++r) {
            if (r < Rows && step + 1 < steps) {
              left.load(f.left[(step + 1) % 2][r], left_tile, r, step + 1);
            }
          }
        }
        between(step, n);
        if (group + 1 == steps * groups) next();
        if (16 * step >= depth) continue;
        auto const& pair = f.right[group % 2];
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
          Pair::multiply(value[r][2 * n], f.left[step % 2][r], pair[0], pair[1]);
          Pair::multiply(value[r][2 * n + 1], f.left[step % 2][r], pair[2], pair[3]);
        }
      }
    }
  }

  /// Lanes whose numbers differ in bit `Bit`: the one without it keeps `low` and gets the `low` of
  /// the other as its `high`.
  template <int Bit>
  static __device__ void exchange(std::uint32_t& low, std::uint32_t& high) {
    bool const upper = (threadIdx.x & Bit) != 0;
    std::uint32_t const received = __shfl_xor_sync(~0U, upper ? low : high, Bit);
    (upper ? low : high) = received;
  }
};

/// A matrix [rows, cols] f32, bf16 or f16 that sums are written to.
struct sums_output {
  tensor_view const& to;
  index_t row_end, col_end;  ///< nothing is written behind
  bool aligned;              ///< runs of eight numbers begin at multiples of 16 bytes

  __device__ sums_output(tensor_view const& matrix, index_t rows, index_t cols)
      : to(matrix),
        row_end(rows),
        col_end(cols),
        aligned(matrix.stride[1] == 1 && matrix.stride[0] % 8 == 0 &&
                reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0) {}

  /// The sums of a warp whose part begins at (row, col).
  template <class Sums>
  __device__ void write(Sums& sums, index_t row, index_t col) const {
    if (to.type == dtype::f32) {
      sums.each_pair([&](int r, int c, float first, float second) {
        write_pair(row + r, col + c, first, second);
      });
    } else if (to.type == dtype::bf16) {
      sums.each_run([](float a, float b) { return bf16_pair::of(a, b); },
                    [&](int r, int c, uint4 run) { write_run(row + r, col + c, run); });
    } else {
      sums.each_run([](float a, float b) { return f16_pair::of(a, b); },
                    [&](int r, int c, uint4 run) { write_run(row + r, col + c, run); });
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
  __device__ void write_run(index_t row, index_t col, uint4 const& run) const {
    if (row >= row_end) return;
    auto* const out = static_cast<std::uint16_t*>(to.data) + offset_of(to, row, col);
    if (aligned && col % 8 == 0 && col + 8 <= col_end) {
      *reinterpret_cast<uint4*>(out) = run;
      return;
    }
    std::uint32_t const words[4] = {run.x, run.y, run.z, run.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (col + i < col_end) {
        out[i * to.stride[1]] = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
      }
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
