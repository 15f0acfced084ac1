#pragma once

#include "cuda/kernels/gemm/sm90/fused_layer/tile.cuh"
#include "cuda/kernels/gemm/sm90/swap_ab/epilogue.cuh"

/// The main loop of the fused layer's consumers.
namespace moe64::cuda {

/// Accumulators of few rows: the WGMMAs of several stages are in flight at once, and promoted in
/// their order. One stage after the other would be a matter of latency.
template <class Tile, int Rows>
class layer_accumulators : public swap_ab_accumulators<Tile, Rows> {
 public:
  using swap_ab_accumulators<Tile, Rows>::swap_ab_accumulators;

  __device__ __forceinline__ void add_all(ring_place<Tile::stages>& at, int k_blocks) {
    constexpr int in_flight = 4;
    int k = 0;
#pragma unroll 1
    for (; k + in_flight <= k_blocks; k += in_flight) add_stages<in_flight>(at);
#pragma unroll 1
    for (; k < k_blocks; ++k) add_stages<1>(at);
  }

 private:
  template <int Count>
  __device__ __forceinline__ void add_stages(ring_place<Tile::stages>& at) {
    float products[Count][Rows / 2];
    int slot[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      slot[i] = at.slot;
      this->memory_.stages.await_filled(at);
      at.next();
      fence_registers(products[i]);
      cute::warpgroup_arrive();
      wgmma_stage<typename Tile::elements, Rows>(this->weights(slot[i]), this->rows(slot[i]),
                                                 products[i], true);
      cute::warpgroup_commit_batch();
    }
    promote_stages<Count>(products, slot);
  }
  /// The last `Left` of Count stages whose WGMMAs are in flight.
  template <int Left, int Count>
  __device__ __forceinline__ void promote_stages(float (&products)[Count][Rows / 2],
                                                 int const (&slot)[Count]) {
    constexpr int i = Count - Left;
    cute::warpgroup_wait<Left - 1>();
    fence_registers(products[i]);
    this->promote(products[i],
                  this->memory_.factor[slot[i]] + this->lane_ % 4 * Tile::factor_stride,
                  this->acc_);
    this->release(slot[i]);
    if constexpr (Left > 1) promote_stages<Left - 1>(products, slot);
  }
};

/// A tile, by the code for its rows rounded up to 8.
template <class Tile, int Rows = 8>
__device__ __forceinline__ void compute_layer_tile(sm90_gemm_parameters const& p,
                                                   swap_ab_memory<Tile>& memory,
                                                   gemm_tile const& tile,
                                                   ring_place<Tile::stages>& at) {
  if constexpr (Rows < Tile::rows) {
    if (tile.rows > Rows) return compute_layer_tile<Tile, Rows + 8>(p, memory, tile, at);
  }
  index_t const k = ceil_div(p.k, index_t{Tile::elements::stage_k});
  layer_accumulators<Tile, Rows> acc(p, memory, (warp_number() - layer_warp::first_consumer) / 4);
  acc.add_all(at, static_cast<int>(k));  // narrow-ok: host looked
  acc.store(tile);
}

/// By a consumer warpgroup.
template <class Tile>
__device__ void consume_layer(sm90_fused_layer_parameters const& p, layer_memory<Tile>& memory) {
  int const warpgroup = (warp_number() - layer_warp::first_consumer) / 4;
  layer_reader<Tile> reader(memory);
  ring_place<Tile::stages> at;
  ring_place<written_slots> written;
  layer_tile tile;
  while (reader.next(tile)) {
    sm90_gemm_parameters const& gemm = p.gemm[tile.gemm];
    load_output_terms(gemm, tile, warpgroup * 64, memory.gemm.terms[warpgroup]);
    compute_layer_tile(gemm, memory.gemm, tile, at);
    memory.written.await_free(written);
    __syncwarp();
    if (lane_number() == 0) arrive(memory.written.filled[written.slot]);
    written.next();
  }
}

}  // namespace moe64::cuda
