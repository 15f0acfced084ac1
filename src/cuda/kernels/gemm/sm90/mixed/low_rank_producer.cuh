#pragma once

#include "cuda/kernels/gemm/sm90/mixed/tile.cuh"

/// The low-rank producer: the factor V of scaling * u V^T into its ring, during the tile before.
namespace moe64::cuda {

/// By one warp, as f32. (u comes by TMA, in stages.)
template <class Tile>
class low_rank_producer {
 public:
  __device__ low_rank_producer(sm90_mixed_parameters const& p, mixed_memory<Tile>& memory)
      : p_(p), memory_(memory) {}
  __device__ void load(gemm_tile const& tile) {
    for (index_t k = 0; k < p_.low_rank.rank; k += low_rank_step) {
      memory_.low_ranks.await_free(at_);
      if (p_.low_rank.f32) {
        fill<float>(tile, k);
      } else {
        fill<std::uint16_t>(tile, k);
      }
      arrive(memory_.low_ranks.filled[at_.slot]);
      at_.next();
    }
  }

 private:
  [[nodiscard]] static __device__ float value(float stored) { return stored; }
  [[nodiscard]] static __device__ float value(std::uint16_t stored) {
    return Tile::element::low(stored);
  }

  /// A lane loads eight values before it stores the first, to cover the latency of global memory;
  /// zero past the ends. A warp reads along what usually is contiguous: k of two outputs;
  /// transposed, 32 outputs.
  template <class Stored>
  __device__ void fill(gemm_tile const& tile, index_t k) {
    constexpr int in_flight = 8, per_lane = Tile::outs * low_rank_step / 32;
    constexpr int next_out = Tile::transposed ? 0 : 2, next_k = Tile::transposed ? 1 : 0;
    low_rank_operands const& low = p_.low_rank;
    index_t const n_stride = low.n[tile.part], k_stride = low.k[tile.part];
    auto const* const from = static_cast<Stored const*>(low.weights[tile.part]) +
                             tile.expert * low.expert[tile.part] + tile.out * n_stride +
                             k * k_stride;
    int const outs = within(p_.n_part - tile.out, Tile::outs);
    int const depth = within(low.rank - k, low_rank_step);
#pragma unroll 1
    for (int i = 0; i < per_lane; i += in_flight) {
      int const lane = lane_number();
      int const out = Tile::transposed ? i / low_rank_step * 32 + lane : i * 2 + lane / 16;
      int const deep = Tile::transposed ? i % low_rank_step : lane % 16;
      Stored const* next = from + out * n_stride + deep * k_stride;
      Stored stored[in_flight];
#pragma unroll
      for (int j = 0; j < in_flight; ++j) {
        bool const there = out + j * next_out < outs && deep + j * next_k < depth;
        stored[j] = there ? *next : Stored{};
        next += next_out * n_stride + next_k * k_stride;
      }
#pragma unroll
      for (int j = 0; j < in_flight; ++j) {
        memory_.low_rank[at_.slot][deep + j * next_k][out + j * next_out] = value(stored[j]);
      }
    }
  }

  sm90_mixed_parameters const& p_;
  mixed_memory<Tile>& memory_;
  ring_place<low_rank_slots> at_;
};

}  // namespace moe64::cuda
