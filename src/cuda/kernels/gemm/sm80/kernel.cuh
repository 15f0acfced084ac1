#pragma once

#include "cuda/kernels/gemm/low_rank.cuh"
#include "cuda/kernels/gemm/sm80/gemm.cuh"
#include "cuda/kernels/gemm/sm80/sums.cuh"

namespace moe64::cuda {

/// The low-rank product of a warp, straight from global memory: ranks are small.
template <class Pair, class Shape>
class low_rank_product {
 public:
  using sums = warp_sums<Shape::row_fragments, Shape::out_fragments, Shape::warps_along_rows>;

  __device__ low_rank_product(grouped_gemm_mma_parameters const& p, gemm_place const& place,
                              warp_place<Shape> const& warp)
      : low_(p.low_rank),
        part_(place.part),
        row_(place.at.row_begin + warp.row),
        rows_(place.at.rows - warp.row),
        n_(place.n_begin + warp.out),
        n_end_(p.n_part),
        weights_(place.at.expert * low_.expert[place.part]) {}

  /// sums = scaling * u V^T.
  __device__ void begin(sums& out) const {
    out.clear();
    for (index_t k = 0; k < low_.rank; k += 16) add(k, out);
    out.scale(low_.scaling);
  }

 private:
  __device__ void add(index_t k, sums& out) const {
    int const lane = lane_number();
    index_t const first = k + lane % 4 * 2;
    std::uint32_t a[Shape::row_fragments][4];
#pragma unroll
    for (int r = 0; r < Shape::row_fragments; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[r][i] = left(16 * Shape::warps_along_rows * r + lane / 4 + i % 2 * 8, first + i / 2 * 8);
      }
    }
#pragma unroll
    for (int n = 0; n < Shape::out_fragments; ++n) {
      index_t const at = n_ + 8 * n + lane / 4;
      float rest[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) rest[i / 2][i % 2] = right(at, first + i % 2 + i / 2 * 8);
#pragma unroll 1
      for (int term = 0; term < low_rank_terms(low_); ++term) {
        std::uint32_t const b0 = take_term<Pair>(rest[0]), b1 = take_term<Pair>(rest[1]);
#pragma unroll
        for (int r = 0; r < Shape::row_fragments; ++r) {
          Pair::multiply(out.value[r][n], a[r], b0, b1);
        }
      }
    }
  }

  [[nodiscard]] __device__ std::uint32_t left(int row, index_t k) const {
    std::uint32_t pair = 0;
    std::uint16_t const* const from = low_.u + (row_ + row) * low_.u_row + k * low_.u_col;
    if (row < rows_ && k < low_.rank) pair = from[0];
    if (row < rows_ && k + 1 < low_.rank) pair |= std::uint32_t{from[low_.u_col]} << 16;
    return pair;
  }
  /// Weight (n, k); zero behind the ends.
  [[nodiscard]] __device__ float right(index_t n, index_t k) const {
    if (n >= n_end_ || k >= low_.rank) return 0.0F;
    return low_rank_number<Pair>(low_, part_, weights_, n, k);
  }

  low_rank_operands const& low_;
  int part_;
  index_t row_, rows_, n_, n_end_, weights_;
};

/// Whether the expert of a tile has no place in a part that the tile reads: then y is NaN. (Of
/// codes the scales are.)
__device__ inline bool is_lost(grouped_gemm_mma_parameters const& p, gemm_place const& place) {
  if (!p.placed) return false;
  if (p.k_parts == 1) return is_lost(p.weights[place.part].at, place.at.expert);
  return is_lost(p.weights[0].at, place.at.expert) || is_lost(p.weights[1].at, place.at.expert);
}

/// Sums plus bias, rounded once.
template <class Shape, bool Plain, class Sums>
__device__ void store_tile(grouped_gemm_mma_parameters const& p, gemm_place const& place,
                           warp_place<Shape> const& warp, Sums& sums) {
  tensor_view const& bias = p.bias[place.part];
  index_t const n_begin = place.n_begin + warp.out;
  if (Plain && is_lost(p, place)) {
    sums.add_to_outs([](int) { return not_a_number(); });
  } else if (bias.present()) {
    sums.add_to_outs([&](int out) {
      index_t const n = n_begin + out;
      return n < p.n_part ? load_float(bias, offset_of(bias, place.at.expert, n)) : 0.0F;
    });
  }
  // Columns of this part only.
  index_t const first = place.part * p.n_part;
  sums_output const y(p.y, place.at.row_begin + place.at.rows, first + p.n_part);
  y.write(sums, place.at.row_begin + warp.row, first + n_begin);
}

template <class Pair, class Shape, bool Deep, codes_kind Codes>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_each)
    grouped_gemm_mma(__grid_constant__ grouped_gemm_mma_parameters const p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ expert_tiles::memory tile_sums;
  constexpr bool quantized = Codes != codes_kind::none;
  constexpr int stages = Shape::stages;
  constexpr int stage_bytes = Shape::stage_bytes(quantized);
  tile_cut const cut = {p.expert_begin, p.y.extent[0], Shape::rows,
                        p.n_parts * ceil_div(p.n_part, index_t{Shape::outs})};
  expert_tiles const tiles(cut, tile_sums);
  gemm_copies<Shape, Deep, Codes> copies(p, tiles, shared);
  for (int i = 0; i < stages; ++i) copies.issue();

  gemm_decoder<Pair, Shape, Deep, Codes> decoder(p);
  std::uint8_t* const decoded = shared + stages * stage_bytes;
  index_t const stages_each = ceil_div(p.k_part, index_t{stage_depth});
  int const last_depth = within(p.k_part - (stages_each - 1) * stage_depth, stage_depth);
  int slot = 0, side = 0;
  await_copies<quantized ? stages - 2 : stages - 1>();
  __syncthreads();
  if constexpr (quantized) {
    int const depth = stages_each == 1 ? last_depth : stage_depth;
#pragma unroll
    for (int i = 0; i < decoder.pieces; ++i) {
      decoder.decode(shared + Shape::x_bytes, decoded, i, depth);
    }
    __syncthreads();
  }
  auto const left_tile = [&] { return shared_address_of(shared + slot * stage_bytes); };
  auto const right_tile = [&] {
    return quantized ? shared_address_of(decoded + side * Shape::weight_bytes)
                     : left_tile() + Shape::x_bytes;
  };

  warp_place<Shape> const warp;
  fragment_reader<true, 8, true, Shape::warps_along_rows> const left(warp.row);
  fragment_reader<Deep, (Deep ? stage_depth : Shape::outs) / chunk_numbers, false, 1> const right(
      warp.out);
  using warp_part = warp_sums<Shape::row_fragments, Shape::out_fragments, Shape::warps_along_rows>;
  warp_part sums;
  typename warp_part::fragments fragments;
  fragments.load_first(left, left_tile(), right, right_tile());
  for (index_t number = blockIdx.x; number < tiles.count(); number += gridDim.x) {
    auto const place = [&] { return gemm_place(p, tiles.at(number), Shape::outs); };
    int const live = warp.live(place().at.rows);
    if (p.low_rank.u == nullptr) {
      sums.clear();
    } else {
      low_rank_product<Pair, Shape>(p, place(), warp).begin(sums);
    }
    index_t const stages_here = p.k_parts * stages_each;
    for (index_t stage = 0, in_part = 0; stage < stages_here; ++stage) {
      // While the products of a stage are taken, codes of the next one are decoded.
      in_part = in_part + 1 == stages_each ? 0 : in_part + 1;
      int const next_depth = in_part + 1 == stages_each ? last_depth : stage_depth;
      shared_address const left_now = left_tile(), right_now = right_tile();
      slot = slot + 1 == stages ? 0 : slot + 1;
      side = 1 - side;
      sums.template add_stage<Pair>(
          fragments, left, left_now, right, right_now, live, stage_depth,
          [&](int step, int group) {
            if constexpr (quantized) {
              constexpr int groups = Shape::out_fragments / 2;
              constexpr int slots = stage_depth / 16 * groups;
              int const at = step * groups + group;
#pragma unroll
              for (int i = 0; i < decoder.pieces; ++i) {
                if (i * slots / decoder.pieces != at) continue;
                decoder.decode(shared + slot * stage_bytes + Shape::x_bytes,
                               decoded + side * Shape::weight_bytes, i, next_depth);
              }
            }
          },
          [&] {
            await_copies<quantized ? stages - 3 : stages - 2>();
            __syncthreads();
            copies.issue();
            fragments.load_first(left, left_tile(), right, right_tile());
          });
    }
    store_tile<Shape, !quantized>(p, place(), warp, sums);
  }
  await_copies<0>();
}

/// The kernels of one shape and one type of x.
template <class Pair, class Shape, codes_kind Codes>
kernel<grouped_gemm_mma_parameters> mma_kernel_of(char const* name, mma_variant const& of) {
  return {name, of.deep ? grouped_gemm_mma<Pair, Shape, true, Codes>
                        : grouped_gemm_mma<Pair, Shape, false, Codes>};
}
template <class Shape, codes_kind Codes>
kernel<grouped_gemm_mma_parameters> mma_kernel_of(char const* name, mma_variant const& of) {
  return of.bf16 ? mma_kernel_of<bf16_pair, Shape, Codes>(name, of)
                 : mma_kernel_of<f16_pair, Shape, Codes>(name, of);
}
template <class Pair, class PlainShape, class CodesShape>
kernel<grouped_gemm_mma_parameters> mma_kernel_of(mma_variant const& of) {
  if (of.codes == codes_kind::none) {
    return mma_kernel_of<Pair, PlainShape, codes_kind::none>("grouped_gemm_mma", of);
  }
  if (of.codes == codes_kind::e4m3) {
    return mma_kernel_of<Pair, CodesShape, codes_kind::e4m3>("grouped_gemm_mma_e4m3", of);
  }
  return mma_kernel_of<Pair, CodesShape, codes_kind::even>("grouped_gemm_mma_codes", of);
}

// Large shapes take the compiler a minute: a file for each type of x.
kernel<grouped_gemm_mma_parameters> mma_kernel_few(mma_variant const& of);
kernel<grouped_gemm_mma_parameters> mma_kernel_some_bf16(mma_variant const& of);
kernel<grouped_gemm_mma_parameters> mma_kernel_some_f16(mma_variant const& of);
kernel<grouped_gemm_mma_parameters> mma_kernel_thin(mma_variant const& of);
kernel<grouped_gemm_mma_parameters> mma_kernel_many_bf16(mma_variant const& of);
kernel<grouped_gemm_mma_parameters> mma_kernel_many_f16(mma_variant const& of);
kernel<grouped_gemm_mma_parameters> mma_kernel_careful(mma_variant const& of);

}  // namespace moe64::cuda
