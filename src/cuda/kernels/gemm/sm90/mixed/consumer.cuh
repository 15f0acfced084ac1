#pragma once

#include "cuda/kernels/device/thread_index.cuh"
#include "cuda/kernels/gemm/sm90/mixed/tile.cuh"

/// A consumer thread: where it is in the rings and in the tile, and when it releases what.
namespace moe64::cuda {

template <class Tile>
struct mixed_consumer {
  sm90_mixed_parameters const& p;
  mixed_memory<Tile>& memory;
  int warpgroup, lane;
  int out;  ///< the first of the two of each 16 outputs of the tile that are this thread's
  ring_place<Tile::stages> stage;
  ring_place<Tile::scale_slots> scale;
  /// Bit 0: the parity of last_multiplied; bit 1: that of the one slot of low_ranks; bit 2:
  /// y_in_stage. In one register, since there is none to spare.
  unsigned state = 0;
  float bias[2];  ///< of its outputs

  __device__ mixed_consumer(sm90_mixed_parameters const& parameters, mixed_memory<Tile>& shared)
      : p(parameters),
        memory(shared),
        warpgroup(warp_number() / 4 - 1),
        lane(lane_number()),
        out(warpgroup * 64 + warp_number() % 4 * 16 + lane / 4 * (Tile::transposed ? 2 : 1)) {}

  [[nodiscard]] __device__ ring_place<low_rank_slots> low_rank() const {
    return {0, state >> 1 & 1};
  }
  __device__ void release_low_rank() {
    arrive(memory.low_ranks.used[0]);
    state ^= 2;
  }
  __device__ void sync_warpgroup() const {
    auto const barrier =
        static_cast<std::uint32_t>(thread_index::number() / 128);  // narrow-ok: 1, 2
    cutlass::arch::NamedBarrier::arrive_and_wait(128, barrier);
  }

  /// By the whole warp: it does not read the stage again.
  __device__ void release_stage(int slot) const {
    end_reads();
    __syncwarp();
    if constexpr (Tile::cluster == 1) {
      if (lane == 0) arrive(memory.stages.used[slot]);
    } else {
      arrive_at(memory.stages.used[slot], lane, lane < Tile::cluster);
    }
  }

  // The last stage of a tile is not released at once: it stages y, which TMA stores while the next
  // tile has begun.

  /// By the whole warp, instead of release_stage().
  __device__ void keep_stage() {
    __syncwarp();
    if (lane == 0) arrive(memory.last_multiplied);
    state |= y_in_stage;
  }
  /// Until all consumers have multiplied the kept stage, which is the one before this. Returns it.
  [[nodiscard]] __device__ std::uint8_t* await_kept_stage() {
    await(memory.last_multiplied, state & 1U);
    state ^= 1U;
    return memory.stage[slot_before(stage.slot)];
  }
  /// If a stage is kept, as soon as TMA has read y. `slot`: the stage after it, the first of the
  /// next tile.
  __device__ void release_kept_stage(int slot) {
    if ((state & y_in_stage) == 0) return;
    cute::tma_store_wait<0>();
    state ^= y_in_stage;
    release_stage(slot_before(slot));
  }

  /// Operand B of an even or odd panel of the tile, which is in the current stage.
  [[nodiscard]] __device__ std::uint8_t const* x(int odd) const {
    return memory.stage[stage.slot] + Tile::weight_bytes + odd % Tile::panels * Tile::panel_bytes;
  }
  __device__ void release_scales() {
    __syncwarp();
    if (lane == 0) arrive(memory.scales.used[scale.slot]);
    scale.next();
  }

  __device__ void load_bias(gemm_tile const& tile) {
    tensor_view const& of_part = p.bias[tile.part];
    if (!of_part.present()) return;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      index_t const at = index_t{tile.out} + out + i * Tile::out_step;
      float const value = at < p.n_part ? load_number(of_part.type, of_part.data,
                                                      offset_of(of_part, tile.expert, at))
                                        : 0.0F;
      if (i == 0) bias[0] = value;
      if (i == 1) bias[1] = value;
    }
  }

  /// Elements from panel `panel` of a tile on, up to the end of a part of k.
  [[nodiscard]] __device__ int k_left(int panel) const {
    int const k = static_cast<int>(p.k_part);  // narrow-ok: host looked
    int const at = panel * Tile::panel_k, panels_end = (k + 127) / 128 * 128;
    return k - (Tile::transposed && at >= panels_end ? at - panels_end : at);
  }

 private:
  static constexpr unsigned y_in_stage = 4;

  [[nodiscard]] static __device__ int slot_before(int slot) {
    return slot == 0 ? Tile::stages - 1 : slot - 1;
  }
};

}  // namespace moe64::cuda
