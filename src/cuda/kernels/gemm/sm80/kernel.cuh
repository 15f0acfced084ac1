#pragma once

#include "cuda/kernels/gemm/kernel_name.hpp"
#include "cuda/kernels/gemm/low_rank.cuh"
#include "cuda/kernels/gemm/sm80/dequantize.cuh"
#include "cuda/kernels/gemm/sm80/epilogue.cuh"
#include "cuda/kernels/gemm/sm80/loads.cuh"

namespace moe64::cuda {

/// The low-rank product of a warp, straight from global memory: ranks are small.
template <class Pair, class Tile>
class low_rank_product {
 public:
  using accumulators = warp_accumulators<Tile>;

  __device__ low_rank_product(sm80_gemm_parameters const& p, gemm_place const& place,
                              warp_place<Tile> const& warp)
      : low_(p.low_rank),
        part_(place.part),
        row_(place.at.row_begin + warp.row),
        rows_(place.at.rows - warp.row),
        n_(place.n_begin + warp.out),
        n_end_(p.n_part),
        weights_(place.at.expert * low_.expert[place.part]) {}

  /// to = scaling * u V^T.
  __device__ void begin(accumulators& to) const {
    to.clear();
    for (index_t k = 0; k < low_.rank; k += 16) add(k, to);
    to.scale(low_.scaling);
  }

 private:
  __device__ void add(index_t k, accumulators& to) const {
    int const lane = lane_number();
    index_t const first = k + lane % 4 * 2;
    std::uint32_t a[Tile::row_fragments][4];
#pragma unroll
    for (int r = 0; r < Tile::row_fragments; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[r][i] = u(16 * Tile::warps_along_rows * r + lane / 4 + i % 2 * 8, first + i / 2 * 8);
      }
    }
#pragma unroll
    for (int n = 0; n < Tile::out_fragments; ++n) {
      index_t const at = n_ + 8 * n + lane / 4;
      float remainder[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) remainder[i / 2][i % 2] = v(at, first + i % 2 + i / 2 * 8);
#pragma unroll 1
      for (int term = 0; term < low_rank_terms(low_); ++term) {
        std::uint32_t const b0 = take_term<Pair>(remainder[0]), b1 = take_term<Pair>(remainder[1]);
#pragma unroll
        for (int r = 0; r < Tile::row_fragments; ++r) {
          Pair::multiply(to.d[r][n], a[r], b0, b1);
        }
      }
    }
  }

  /// u(row, k) and u(row, k + 1); zeros past its ends.
  [[nodiscard]] __device__ std::uint32_t u(int row, index_t k) const {
    std::uint32_t pair = 0;
    std::uint16_t const* const from = low_.u + (row_ + row) * low_.u_row + k * low_.u_col;
    if (row < rows_ && k < low_.rank) pair = from[0];
    if (row < rows_ && k + 1 < low_.rank) pair |= std::uint32_t{from[low_.u_col]} << 16;
    return pair;
  }
  /// V(n, k); zero past its ends.
  [[nodiscard]] __device__ float v(index_t n, index_t k) const {
    if (n >= n_end_ || k >= low_.rank) return 0.0F;
    return low_rank_value<Pair>(low_, part_, weights_, n, k);
  }

  low_rank_operands const& low_;
  int part_;
  index_t row_, rows_, n_, n_end_, weights_;
};

/// Whether the expert of a tile has no place in a part that the tile reads: then y is NaN. (Codes
/// have NaN as their scales instead.)
__device__ inline bool is_lost(sm80_gemm_parameters const& p, gemm_place const& place) {
  if (!p.has_places) return false;
  if (p.k_parts == 1) return is_lost(p.weights[place.part].expert_place, place.at.expert);
  return is_lost(p.weights[0].expert_place, place.at.expert) ||
         is_lost(p.weights[1].expert_place, place.at.expert);
}

/// The epilogue: accumulators plus bias, rounded once.
template <class Tile, bool Plain>
__device__ void store_tile(sm80_gemm_parameters const& p, gemm_place const& place,
                           warp_place<Tile> const& warp, warp_accumulators<Tile>& accumulators) {
  tensor_view const& bias = p.bias[place.part];
  index_t const n_begin = place.n_begin + warp.out;
  if (Plain && is_lost(p, place)) {
    accumulators.add_to_outs([](int) { return not_a_number(); });
  } else if (bias.present()) {
    accumulators.add_to_outs([&](int out) {
      index_t const n = n_begin + out;
      return n < p.n_part ? load_float(bias, offset_of(bias, place.at.expert, n)) : 0.0F;
    });
  }
  // Columns of this part only.
  index_t const first = place.part * p.n_part;
  matrix_output const y(p.y, place.at.row_begin + place.at.rows, first + p.n_part);
  y.write(accumulators, place.at.row_begin + warp.row, first + n_begin);
}

/// Computes: y = x W^T per expert, W plain or dequantised on the way, plus low-rank term and bias.
///   Every accumulator is one chain of MMAs over k in steps of 16 from 0 on: its bits do not depend
///   on the tile.
/// Grid: persistent, Tile::ctas_per_sm CTAs per SM; round-robin over the tiles of all experts.
/// Threads: all warps load (cp.async, stages ahead), dequantise (a stage ahead) and multiply.
/// Shared memory: a ring of stages (x; weights, or codes and scales); for codes a double buffer of
///   dequantised weights.
/// Limits: sm80::takes().
template <class Pair, class Tile, bool KMajor, mma_weights Weights>
__global__ void __launch_bounds__(Tile::threads, Tile::ctas_per_sm)
    sm80_mma(__grid_constant__ sm80_gemm_parameters const p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ expert_tiles::memory tile_sums;
  constexpr bool quantized = Weights != mma_weights::plain;
  constexpr int stages = Tile::stages;
  constexpr int stage_bytes = Tile::template stage_bytes<quantized>;
  tile_cut const cut = {p.expert_begin, p.y.extent[0], Tile::rows,
                        p.n_parts * ceil_div(p.n_part, index_t{Tile::outs})};
  expert_tiles const tiles(cut, tile_sums);
  gemm_loads<Tile, KMajor, Weights> loads(p, tiles, shared);
  for (int i = 0; i < stages; ++i) loads.issue();

  stage_dequantizer<Pair, Tile, KMajor, Weights> dequantizer(p);
  std::uint8_t* const dequantized = shared + stages * stage_bytes;
  index_t const k_stages = ceil_div(p.k_part, index_t{stage_k});  // of a part
  int const last_k = within(p.k_part - (k_stages - 1) * stage_k, stage_k);
  int slot = 0, buffer = 0;
  await_copies<quantized ? stages - 2 : stages - 1>();
  __syncthreads();
  if constexpr (quantized) {
    int const k_count = k_stages == 1 ? last_k : stage_k;
#pragma unroll
    for (int i = 0; i < dequantizer.steps; ++i) {
      dequantizer.take(shared + Tile::x_bytes, dequantized, i, k_count);
    }
    __syncthreads();
  }
  auto const a_stage = [&] { return shared_address_of(shared + slot * stage_bytes); };
  auto const b_stage = [&] {
    return quantized ? shared_address_of(dequantized + buffer * Tile::weight_bytes)
                     : a_stage() + Tile::x_bytes;
  };

  warp_place<Tile> const warp;
  fragment_reader<true, 8, true, Tile::warps_along_rows> const a(warp.row);
  fragment_reader<KMajor, (KMajor ? stage_k : Tile::outs) / chunk_elements, false, 1> const b(
      warp.out);
  warp_accumulators<Tile> accumulators;
  typename warp_accumulators<Tile>::fragments fragments;
  fragments.load_first(a, a_stage(), b, b_stage());
  for (index_t index = blockIdx.x; index < tiles.count(); index += gridDim.x) {
    auto const place = [&] { return gemm_place(p, tiles.at(index), Tile::outs); };
    int const live = warp.live(place().at.rows);
    if (p.low_rank.u == nullptr) {
      accumulators.clear();
    } else {
      low_rank_product<Pair, Tile>(p, place(), warp).begin(accumulators);
    }
    index_t const tile_stages = p.k_parts * k_stages;
    for (index_t stage = 0, in_part = 0; stage < tile_stages; ++stage) {
      // The codes of the next stage are dequantised between the MMAs of this one.
      in_part = in_part + 1 == k_stages ? 0 : in_part + 1;
      int const next_k = in_part + 1 == k_stages ? last_k : stage_k;
      shared_address const a_now = a_stage(), b_now = b_stage();
      slot = slot + 1 == stages ? 0 : slot + 1;
      buffer = 1 - buffer;
      accumulators.template add_stage<Pair>(
          fragments, a, a_now, b, b_now, live, stage_k,
          [&](int step, int batch) {
            if constexpr (quantized) {
              constexpr int batches = Tile::out_fragments / 2;
              constexpr int gaps = stage_k / 16 * batches;
              int const at = step * batches + batch;
#pragma unroll
              for (int i = 0; i < dequantizer.steps; ++i) {
                if (i * gaps / dequantizer.steps != at) continue;
                dequantizer.take(shared + slot * stage_bytes + Tile::x_bytes,
                                 dequantized + buffer * Tile::weight_bytes, i, next_k);
              }
            }
          },
          [&] {
            await_copies<quantized ? stages - 3 : stages - 2>();
            __syncthreads();
            loads.issue();
            fragments.load_first(a, a_stage(), b, b_stage());
          });
    }
    store_tile<Tile, !quantized>(p, place(), warp, accumulators);
  }
  await_copies<0>();
}

template <class Pair, mma_tile Tile, mma_weights Weights>
inline constexpr kernel_name mma_kernel_name = {"sm80_mma", Pair::name, name(Weights), name(Tile)};

template <class Pair, mma_tile Tile, mma_weights Weights>
kernel<sm80_gemm_parameters> mma_kernel(bool k_major) {
  using layout = mma_tile_layout<Tile>;
  return {mma_kernel_name<Pair, Tile, Weights>.text,
          k_major ? sm80_mma<Pair, layout, true, Weights> : sm80_mma<Pair, layout, false, Weights>};
}

}  // namespace moe64::cuda
