#pragma once

#include "cuda/kernels/grouped_gemm_mma.cuh"
#include "cuda/kernels/mma_sums.cuh"

namespace moe64::cuda {

/// The low-rank product of a warp, straight from global memory: ranks are small.
template <class Pair, class Shape>
class low_rank_product {
 public:
  using sums = warp_sums<Shape::row_fragments, Shape::out_fragments>;

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
    int const lane = static_cast<int>(threadIdx.x) % 32;
    index_t const first = k + lane % 4 * 2;
    std::uint32_t a[Shape::row_fragments][4];
#pragma unroll
    for (int r = 0; r < Shape::row_fragments; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[r][i] = left(16 * r + lane / 4 + i % 2 * 8, first + i / 2 * 8);
      }
    }
    // f32 weights are sums of three bf16 numbers, which is exact.
    int const terms = low_.f32 ? 3 : 1;
#pragma unroll
    for (int n = 0; n < Shape::out_fragments; ++n) {
      index_t const at = n_ + 8 * n + lane / 4;
      float rest[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) rest[i] = right(at, first + i % 2 + i / 2 * 8);
#pragma unroll 1
      for (int term = 0; term < terms; ++term) {
        std::uint32_t const b0 = Pair::of(rest[0], rest[1]), b1 = Pair::of(rest[2], rest[3]);
#pragma unroll
        for (int r = 0; r < Shape::row_fragments; ++r) {
          Pair::multiply(out.value[r][n], a[r], b0, b1);
        }
        float const taken[4] = {Pair::low(b0), Pair::high(b0), Pair::low(b1), Pair::high(b1)};
#pragma unroll
        for (int i = 0; i < 4; ++i) rest[i] = isfinite(taken[i]) ? rest[i] - taken[i] : 0.0F;
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
    index_t const at = weights_ + n * low_.n[part_] + k * low_.k[part_];
    if (low_.f32) return static_cast<float const*>(low_.weights[part_])[at];
    return Pair::low(static_cast<std::uint16_t const*>(low_.weights[part_])[at]);
  }

  mma_low_rank const& low_;
  int part_;
  index_t row_, rows_, n_, n_end_, weights_;
};

/// Sums plus bias, rounded once.
template <class Shape, class Sums>
__device__ void store_tile(grouped_gemm_mma_parameters const& p, gemm_place const& place,
                           warp_place<Shape> const& warp, Sums& sums) {
  tensor_view const& bias = p.bias[place.part];
  index_t const n_begin = place.n_begin + warp.out;
  if (bias.present()) {
    sums.add_to_outs([&](int out) {
      index_t const n = n_begin + out;
      return n < p.n_part ? load_float(bias, offset_of(bias, place.at.expert, n)) : 0.0F;
    });
  }
  pair_output const y(p.y);
  sums.each_pair([&](int row, int out, float first, float second) {
    index_t const n = n_begin + out;
    if (warp.row + row >= place.at.rows || n >= p.n_part) return;
    y.write(place.at.row_begin + warp.row + row, place.part * p.n_part + n, first, second,
            n + 1 < p.n_part);
  });
}

template <class Pair, class Shape, bool Deep, bool Quantized, int BlocksEach>
__global__ void __launch_bounds__(Shape::threads, BlocksEach)
    grouped_gemm_mma(__grid_constant__ grouped_gemm_mma_parameters const p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ expert_tiles::memory tile_sums;
  constexpr int stages = Shape::stages;
  constexpr int stage_bytes = Shape::stage_bytes(Quantized);
  tile_cut const cut = {p.expert_begin, p.y.extent[0], Shape::rows,
                        p.n_parts * ceil_div(p.n_part, index_t{Shape::outs})};
  expert_tiles const tiles(cut, tile_sums);
  gemm_copies<Shape, Deep, Quantized> copies(p, tiles, shared);
  for (int i = 0; i < stages - 1; ++i) copies.issue();

  gemm_decoder<Pair, Shape, Deep> const decoder(p);
  std::uint8_t* const decoded = shared + stages * stage_bytes;
  index_t const stages_each = ceil_div(p.k_part, index_t{stage_depth});
  int const last_depth = static_cast<int>(p.k_part - (stages_each - 1) * stage_depth);
  int slot = 0, side = 0;
  if constexpr (Quantized) {
    await_copies<stages - 2>();
    __syncthreads();
    int const depth = stages_each == 1 ? last_depth : stage_depth;
    for (int i = 0; i < 4; ++i) decoder.decode(shared + Shape::x_bytes, decoded, i, depth);
  }

  warp_place<Shape> const warp;
  fragment_reader<true, 8, true> const left(warp.row);
  fragment_reader<Deep, (Deep ? stage_depth : Shape::outs) / chunk_numbers, false> const right(
      warp.out);
  warp_sums<Shape::row_fragments, Shape::out_fragments> sums;
  for (index_t number = blockIdx.x; number < tiles.count(); number += gridDim.x) {
    auto const place = [&] { return gemm_place(p, tiles.at(number), Shape::outs); };
    if (p.low_rank.u == nullptr) {
      sums.clear();
    } else {
      low_rank_product<Pair, Shape>(p, place(), warp).begin(sums);
    }
    for (int part = 0; part < p.k_parts; ++part) {
      for (index_t stage = 0; stage < stages_each; ++stage) {
        await_copies<Quantized ? stages - 3 : stages - 2>();
        __syncthreads();
        copies.issue();
        std::uint8_t* const from = shared + slot * stage_bytes;
        slot = slot + 1 == stages ? 0 : slot + 1;
        if constexpr (Quantized) {
          std::uint8_t const* const codes = shared + slot * stage_bytes + Shape::x_bytes;
          std::uint8_t* const to = decoded + (1 - side) * Shape::weight_bytes;
          bool const next_is_last =
              stage + 2 == stages_each || (stages_each == 1 && stage + 1 == stages_each);
          int const depth = next_is_last ? last_depth : stage_depth;
          sums.template add_stage<Pair>(left, shared_address_of(from), right,
                                        shared_address_of(decoded + side * Shape::weight_bytes),
                                        [&](int step) { decoder.decode(codes, to, step, depth); });
          side = 1 - side;
        } else {
          sums.template add_stage<Pair>(left, shared_address_of(from), right,
                                        shared_address_of(from + Shape::x_bytes), [](int) {});
        }
      }
    }
    store_tile<Shape>(p, place(), warp, sums);
  }
  await_copies<0>();
}

/// The kernels of one type of x and one shape.
template <class Pair, class Shape, int BlocksEach>
kernel<grouped_gemm_mma_parameters> mma_kernel_of(mma_variant const& of) {
  if (of.quantized) {
    return {"grouped_gemm_mma_codes", of.deep
                                          ? grouped_gemm_mma<Pair, Shape, true, true, BlocksEach>
                                          : grouped_gemm_mma<Pair, Shape, false, true, BlocksEach>};
  }
  return {"grouped_gemm_mma", of.deep ? grouped_gemm_mma<Pair, Shape, true, false, BlocksEach>
                                      : grouped_gemm_mma<Pair, Shape, false, false, BlocksEach>};
}

kernel<grouped_gemm_mma_parameters> mma_kernel_few(mma_variant const& of);
kernel<grouped_gemm_mma_parameters> mma_kernel_some(mma_variant const& of);
kernel<grouped_gemm_mma_parameters> mma_kernel_many(mma_variant const& of);

}  // namespace moe64::cuda
