#pragma once

#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/gemm/sm90/fused_layer/scheduler.cuh"
#include "cuda/kernels/gemm/sm90/tma.cuh"

namespace moe64::cuda {

/// By one warp: to ask whether rows of the activation are quantised takes a round trip to memory,
/// for which the producer does not wait.
template <class Tile>
__device__ void watch_x(sm90_fused_layer_parameters const& p, layer_memory<Tile>& memory) {
  pdl_begin();
  layer_reader<Tile> reader(memory);
  for (;; reader.done()) {
    layer_tile const& tile = reader.await();
    if (tile.expert < 0) return;
    if (lane_number() != 0) continue;
    if (tile.gemm == down) {
      auto const groups = static_cast<std::uint32_t>(p.index.groups);  // narrow-ok: host looked
      while (load_acquire(p.counters + p.index.quantized(tile.row_tile)) != groups) {
      }
    }
    arrive(memory.x_there[reader.at().slot]);
  }
}

/// By one thread: takes tiles from the work counter, publishes them and loads their stages by TMA.
/// As swap_ab_producer, but weights do not wait for x.
template <class Tile>
class layer_producer {
 public:
  __device__ layer_producer(sm90_fused_layer_parameters const& p, layer_memory<Tile>& memory)
      : p_(p), memory_(memory), tiles_(p, memory) {}

  /// From tile `number` on.
  __device__ void run(unsigned number) {
    layer_tile_place to;
    for (bool first = true;; to.next(), first = false) {
      layer_tile const tile = tiles_[number];
      memory_.tiles.await_free(to);
      memory_.tile[to.slot] = tile;
      arrive(memory_.tiles.filled[to.slot]);
      if (tile.expert < 0) return;
      if (first && tile.gemm == down) give_way();
      index_t const k = p_.gemm[tile.gemm].k;
      number = load(tile, static_cast<int>(ceil_div(k, stage_k)), to);  // narrow-ok: host looked
      if (tile.gemm == gate_up) atomicAdd(p_.counters + p_.index.requested(), 1U);
    }
  }

 private:
  static constexpr index_t stage_k = Tile::elements::stage_k;

  /// A CTA that begins with down has time: gate_up is read first.
  __device__ void give_way() const {
    while (2 * load_acquire(p_.counters + p_.index.requested()) < tiles_.gate_up_tiles()) {
    }
  }

  __device__ void load_weights(layer_tile const& tile, int k, int slot) const {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
    shared_barrier& filled = memory_.gemm.stages.filled[slot];
    auto const bytes = static_cast<std::uint32_t>(  // narrow-ok: a stage
        Tile::weight_bytes + tile.steps_of_8() * 1024);
    cute::set_barrier_transaction_bytes(filled, bytes);
    cute::SM90_TMA_LOAD_3D::copy(&p_.gemm[tile.gemm].weights[tile.part], &filled, hint,
                                 memory_.gemm.stage[slot], k * Tile::elements::stage_k, tile.out,
                                 tile.expert);
  }
  __device__ void load_x(layer_tile const& tile, int k, int slot) const {
    static_assert(Tile::rows <= 16);
    int const box = tile.steps_of_8() - 1;
    cute::SM90_TMA_LOAD_2D::copy(&p_.gemm[tile.gemm].x[box], &memory_.gemm.stages.filled[slot],
                                 keep_in_l2, memory_.gemm.stage[slot] + Tile::weight_bytes,
                                 k * Tile::elements::stage_k, tile.row);
  }

  /// Returns the number of the next tile, which is taken when this one is nearly requested: not by
  /// a CTA that has to wait, as long as others have not.
  [[nodiscard]] __device__ unsigned load(layer_tile const& tile, int k_stages,
                                         layer_tile_place const& place) {
    constexpr int before_end = 4;
    auto& stages = memory_.gemm.stages;
    shared_barrier const& x_there = memory_.x_there[place.slot];
    int requested = 0;  // stages whose x is requested
    bool there = false, taken = false;
    unsigned next = 0;
    auto const request_x = [&](int end) {
#pragma unroll 4
      for (; requested < end; ++requested, x_at_.next()) load_x(tile, requested, x_at_.slot);
    };
#pragma unroll 1
    for (int k = 0; k < k_stages; ++k, at_.next()) {
      if (!there) {
        there = is_past(x_there, place.parity);
        if (!there && k == Tile::stages) {
          await(x_there, place.parity);
          there = true;
        }
        if (there) fence_before_tma(), request_x(k);
      }
      stages.await_free(at_);
      load_weights(tile, k, at_.slot);
      if (!there) continue;
      request_x(k + 1);
      if (!taken && k + before_end >= k_stages) {
        next = atomicAdd(p_.counters + p_.index.work(), 1U);
        taken = true;
      }
    }
    if (!there) await(x_there, place.parity), fence_before_tma();
    request_x(k_stages);
    return taken ? next : atomicAdd(p_.counters + p_.index.work(), 1U);
  }

  sm90_fused_layer_parameters const& p_;
  layer_memory<Tile>& memory_;
  layer_tiles<Tile> tiles_;
  ring_place<Tile::stages> at_, x_at_;
};

}  // namespace moe64::cuda
