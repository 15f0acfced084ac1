#pragma once

#include "cuda/kernels/gemm/sm80/stage.cuh"

#include <type_traits>

/// The accumulators of a warp: its part of a tile, as m16n8k16 MMAs leave them in registers.
namespace moe64::cuda {

template <class Tile>
struct warp_accumulators {
  static constexpr int row_fragments = Tile::row_fragments, out_fragments = Tile::out_fragments;
  static constexpr int row_stride = Tile::warps_along_rows;

  float d[row_fragments][out_fragments][4];

  __device__ void clear() {
    each([](float& value) { value = 0.0F; });
  }
  __device__ void scale(float factor) {
    each([&](float& value) { value *= factor; });
  }
  template <class Body>
  __device__ void each(Body const& body) {
#pragma unroll
    for (int r = 0; r < row_fragments; ++r) {
#pragma unroll
      for (int n = 0; n < out_fragments; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) body(d[r][n][i]);
      }
    }
  }

  /// body(row, out, first, second) for the pairs of this lane: outputs `out` and `out` + 1 of
  /// `row`, both relative to the warp's part.
  template <class Body>
  __device__ void each_pair(Body const& body) {
    int const lane = lane_number();
#pragma unroll
    for (int r = 0; r < row_fragments; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < out_fragments; ++n) {
          body(16 * row_stride * r + 8 * half + lane / 4, 8 * n + lane % 4 * 2, d[r][n][2 * half],
               d[r][n][2 * half + 1]);
        }
      }
    }
  }
  /// += term(out) for every row.
  template <class Term>
  __device__ void add_to_outs(Term const& term) {
    int const lane = lane_number();
#pragma unroll
    for (int n = 0; n < out_fragments; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float const addend = term(8 * n + lane % 4 * 2 + i);
#pragma unroll
        for (int r = 0; r < row_fragments; ++r) {
          d[r][n][i] += addend;
          d[r][n][i + 2] += addend;
        }
      }
    }
  }

  /// body(row, out, vec8) for vec8s of outputs from `out` on, of 16 bits: pack(first, second) packs
  /// two. Four lanes exchange what they hold of four fragments.
  template <class Pack, class Body>
  __device__ void each_vec8(Pack const& pack, Body const& body) const {
    static_assert(out_fragments % 4 == 0);
    int const lane = lane_number();
#pragma unroll
    for (int r = 0; r < row_fragments; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < out_fragments; n += 4) {
          std::uint32_t vec8[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            vec8[i] = pack(d[r][n + i][2 * half], d[r][n + i][2 * half + 1]);
          }
          exchange<1>(vec8[0], vec8[1]);
          exchange<1>(vec8[2], vec8[3]);
          exchange<2>(vec8[0], vec8[2]);
          exchange<2>(vec8[1], vec8[3]);
          body(16 * row_stride * r + 8 * half + lane / 4, 8 * (n + lane % 4),
               uint4{vec8[0], vec8[1], vec8[2], vec8[3]});
        }
      }
    }
  }

  /// Double-buffered fragments of a stage, loaded one batch of MMAs ahead: A for a step of 16 along
  /// k, B for two fragments of outputs.
  struct fragments {
    std::uint32_t a[2][row_fragments][4], b[2][4];

    template <class AReader, class BReader>
    __device__ void load_first(AReader const& a_reader, shared_address a_stage,
                               BReader const& b_reader, shared_address b_stage) {
#pragma unroll
      for (int r = 0; r < row_fragments; ++r) a_reader.load(a[0][r], a_stage, r, 0);
      b_reader.load(b[0], b_stage, 0, 0);
    }
  };

  /// += the MMAs of a stage whose first fragments are loaded: of the first `live` row fragments and
  /// of `k` elements (more than 0) along k, both the same for the whole CTA. between(step, n) is
  /// called before each batch of MMAs, of which there are four steps of out_fragments / 2 each;
  /// next() before the last batch, when the stage has been read: it loads the first fragments of
  /// the next one.
  template <class Pair, class AReader, class BReader, class Between, class Next>
  __device__ void add_stage(fragments& f, AReader const& a, shared_address a_stage,
                            BReader const& b, shared_address b_stage, int live, int k,
                            Between const& between, Next const& next) {
    auto const add = [&](auto rows) {
      add_rows<Pair, rows.value>(f, a, a_stage, b, b_stage, k, between, next);
    };
    if constexpr (row_fragments > 2) {
      if (live > 2) return add(std::integral_constant<int, row_fragments>{});
    }
    if constexpr (row_fragments > 1) {
      if (live > 1) return add(std::integral_constant<int, 2>{});
    }
    add(std::integral_constant<int, 1>{});
  }

 private:
  template <class Pair, int Rows, class AReader, class BReader, class Between, class Next>
  __device__ void add_rows(fragments& f, AReader const& a, shared_address a_stage, BReader const& b,
                           shared_address b_stage, int k, Between const& between,
                           Next const& next) {
    constexpr int steps = stage_k / 16, batches = out_fragments / 2;
    constexpr int ahead = (Rows + batches - 1) / batches;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int n = 0; n < batches; ++n) {
        int const batch = step * batches + n;
        if (batch + 1 < steps * batches) {
          b.load(f.b[(batch + 1) % 2], b_stage, (batch + 1) % batches, (batch + 1) / batches);
#pragma unroll
          for (int r = n * ahead; r < (n + 1) * ahead; ++r) {
            if (r < Rows && step + 1 < steps) {
              a.load(f.a[(step + 1) % 2][r], a_stage, r, step + 1);
            }
          }
        }
        between(step, n);
        if (batch + 1 == steps * batches) next();
        if (16 * step >= k) continue;
        auto const& pair = f.b[batch % 2];
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
          Pair::multiply(d[r][2 * n], f.a[step % 2][r], pair[0], pair[1]);
          Pair::multiply(d[r][2 * n + 1], f.a[step % 2][r], pair[2], pair[3]);
        }
      }
    }
  }

  /// Lanes whose indices differ in bit `Bit`: the one without it keeps `low` and gets the `low` of
  /// the other as its `high`.
  template <int Bit>
  static __device__ void exchange(std::uint32_t& low, std::uint32_t& high) {
    bool const upper = (threadIdx.x & Bit) != 0;
    std::uint32_t const received = __shfl_xor_sync(~0U, upper ? low : high, Bit);
    (upper ? low : high) = received;
  }
};

}  // namespace moe64::cuda
