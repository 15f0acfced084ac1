#pragma once

#include "cuda/kernels/gemm/sm90/fused_layer/layer.hpp"
#include "cuda/kernels/gemm/sm90/swap_ab/kernel.cuh"
#include "cuda/kernels/plan/small_batch_sort.cuh"

/// The block of sm90_swap_ab_gemm.cuh, which takes tiles of gate_up and then of down from one
/// queue. A tile of down asks for its weights at once and waits for the codes of its rows. It waits
/// for tiles alone that were taken from the queue before it, by blocks that run: so it gets them,
/// however few blocks there is room for. Here is who feeds; layer_wgmma_steps.cuh has the others.
namespace moe64::cuda {

template <class Elements, int Rows, int Stages>
struct layer_tile_shape : swap_ab_tile<Elements, Rows, Stages> {
  static constexpr int rows_out = 16;
  static constexpr int out_bytes = rows_out * 128;
};

/// Warp 0 takes tiles and loads, 1 watches for x, two make factors, eight multiply, two finish.
struct layer_warps {
  static constexpr int watching = 1, factors = 2, multiplying = 4, finishing = 12, all = 14;
};

/// Rows of one expert.
struct layer_unit {
  int expert, row, rows;
};

struct layer_tile : gemm_tile {
  int product, unit;
};

inline constexpr int layer_tile_slots = 4, written_slots = 2;
using layer_tile_place = ring_place<layer_tile_slots>;

template <class Tile>
struct layer_memory {
  swap_ab_memory<Tile> of;
  sorted_few sorted;
  int begins[small_batch];  ///< row of a slot with which a unit begins, or nobody
  layer_unit unit[small_batch];
  int units;
  layer_tile tile[layer_tile_slots];
  ring_barriers<layer_tile_slots> tiles;
  shared_barrier x_there[layer_tile_slots];  ///< x of a tile can be read
  ring_barriers<written_slots> written;      ///< tiles, in their order
  int last[written_slots];                   ///< whether the tile is the last of those that count

  /// By one thread.
  __device__ void make_barriers() {
    constexpr int factor_warps = 2, multiplying_warps = 8, finishing_warps = 2;
    of.stages.make(1 + factor_warps, multiplying_warps);
    tiles.make(1, 1 + factor_warps + multiplying_warps + finishing_warps);
    for (shared_barrier& barrier : x_there) make_barrier(barrier, 1);
    written.make(multiplying_warps, finishing_warps);
    cutlass::arch::fence_barrier_init();
  }
};

/// By all threads, of which the first have the ids of slots; ends with a barrier.
template <class Tile>
__device__ void find_units(plan_rounds_parameters const& p, index_t id,
                           layer_memory<Tile>& memory) {
  int const slot = thread_number();
  few_slot const mine = sort_few(p, id, memory.sorted);
  bool const begins = mine.row >= 0 && mine.among % Tile::rows == 0;
  if (slot < p.slots) memory.begins[slot] = begins ? mine.row : sorted_few::nobody;
  int const units = __syncthreads_count(begins ? 1 : 0);
  if (thread_number() == 0) memory.units = units;
  if (begins) {
    int unit = 0, rows = -mine.among;
    for (int s = 0; s < p.slots; ++s) {
      unit += memory.begins[s] < mine.row ? 1 : 0;
      rows += memory.sorted.expert[s] == mine.expert ? 1 : 0;
    }
    memory.unit[unit] = {mine.expert, mine.row, min(rows, Tile::rows)};
  }
  __syncthreads();
}

/// The same by the first warp, for up to warp_slots slots; others see it with the first tile.
template <class Tile>
__device__ void find_units_in_warp(plan_rounds_parameters const& p, index_t id,
                                   layer_memory<Tile>& memory) {
  constexpr unsigned all = ~0U;
  few_slot const mine = sort_in_warp(p, id);
  int const rows = __popc(__match_any_sync(all, mine.expert)) - mine.among;
  bool const begins = mine.row >= 0 && mine.among % Tile::rows == 0;
  int const begin = begins ? mine.row : sorted_few::nobody;
  int unit = 0;
  for (int s = 0; s < p.slots; ++s) unit += __shfl_sync(all, begin, s) < begin ? 1 : 0;
  int const units = __popc(__ballot_sync(all, begins));
  if (begins) memory.unit[unit] = {mine.expert, mine.row, min(rows, Tile::rows)};
  if (lane_number() < p.slots) memory.sorted.row[lane_number()] = mine.row;
  if (lane_number() == 0) memory.units = units;
  __syncwarp();
}

/// Tiles for one warp, as tile_reader.
template <class Tile>
class layer_reader {
 public:
  __device__ explicit layer_reader(layer_memory<Tile>& memory) : memory_(memory) {}
  __device__ bool next(layer_tile& tile) {
    tile = await();
    done();
    return tile.expert >= 0;
  }
  __device__ layer_tile const& await() {
    memory_.tiles.await_filled(at_);
    return memory_.tile[at_.slot];
  }
  __device__ void done() {
    __syncwarp();
    if (lane_number() == 0) arrive(memory_.tiles.used[at_.slot]);
    at_.next();
  }
  [[nodiscard]] __device__ layer_tile_place const& at() const { return at_; }

 private:
  layer_memory<Tile>& memory_;
  layer_tile_place at_;
};

/// The tiles of all units in one row: those of gate_up, then those of down.
template <class Tile>
class layer_queue {
 public:
  __device__ layer_queue(sm90_fused_layer_parameters const& p, layer_memory<Tile> const& memory)
      : memory_(memory),
        parts_(static_cast<unsigned>(p.product[0].parts)),  // narrow-ok: 1 or 2
        of_gate_up_(parts_ * tiles_of(p.product[0])),
        of_down_(tiles_of(p.product[1])) {}

  /// Without an expert where there is none.
  [[nodiscard]] __device__ layer_tile operator[](unsigned number) const {
    layer_tile tile = {};
    tile.expert = -1;
    auto const units = static_cast<unsigned>(memory_.units);  // narrow-ok: few
    bool const down = number >= units * of_gate_up_;
    if (down) number -= units * of_gate_up_;
    unsigned const each = down ? of_down_ : of_gate_up_;
    if (number >= units * each) return tile;
    unsigned const unit = number / each, in_unit = number % each;
    // Gate and up of the same columns side by side: their activation can be had early.
    unsigned const parts = down ? 1 : parts_;
    layer_unit const& rows = memory_.unit[unit];
    tile.expert = rows.expert;
    tile.row = rows.row;
    tile.rows = rows.rows;
    tile.part = static_cast<int>(in_unit % parts);              // narrow-ok: 0 or 1
    tile.out = static_cast<int>(in_unit / parts * Tile::outs);  // narrow-ok: host looked
    tile.product = down ? 1 : 0;
    tile.unit = static_cast<int>(unit);  // narrow-ok: few
    return tile;
  }

  [[nodiscard]] __device__ unsigned gate_up_tiles() const {
    return static_cast<unsigned>(memory_.units) * of_gate_up_;  // narrow-ok: few
  }

 private:
  [[nodiscard]] static __device__ unsigned tiles_of(sm90_gemm_parameters const& product) {
    return static_cast<unsigned>(ceil_div(product.n_part, index_t{Tile::outs}));  // narrow-ok: host
  }

  layer_memory<Tile> const& memory_;
  unsigned parts_, of_gate_up_, of_down_;
};

/// What other blocks have counted; what they wrote before is then seen.
__device__ inline std::uint32_t counted(std::uint32_t const* counter) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
/// Counts one more, behind all that the thread wrote or has seen, and says how many there were;
/// what those wrote is then seen.
__device__ inline std::uint32_t count_one(std::uint32_t* counter) {
  std::uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}
/// Between what threads write and what copy engines read.
__device__ inline void fence_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// By one warp: to ask whether the codes of an activation are there takes an answer of memory, for
/// which those who load do not wait.
template <class Tile>
__device__ void watch_x(sm90_fused_layer_parameters const& p, layer_memory<Tile>& memory) {
  pdl_begin();
  layer_reader<Tile> reader(memory);
  for (;; reader.done()) {
    layer_tile const& tile = reader.await();
    if (tile.expert < 0) return;
    if (lane_number() != 0) continue;
    if (tile.product == 1) {
      auto const groups = static_cast<std::uint32_t>(p.at.groups);  // narrow-ok: host looked
      while (counted(p.counters + p.at.ready(tile.unit)) != groups) {
      }
    }
    arrive(memory.x_there[reader.at().slot]);
  }
}

/// By one thread: takes tiles from the queue and has their stages filled. As
/// swap_ab_operand_producer, but weights do not wait for x.
template <class Tile>
class layer_loader {
 public:
  __device__ layer_loader(sm90_fused_layer_parameters const& p, layer_memory<Tile>& memory)
      : p_(p), memory_(memory), queue_(p, memory) {}

  /// From tile `number` on.
  __device__ void run(unsigned number) {
    layer_tile_place to;
    for (bool first = true;; to.next(), first = false) {
      layer_tile const tile = queue_[number];
      memory_.tiles.await_free(to);
      memory_.tile[to.slot] = tile;
      arrive(memory_.tiles.filled[to.slot]);
      if (tile.expert < 0) return;
      if (first && tile.product == 1) give_way();
      index_t const k = p_.product[tile.product].k;
      number = load(tile, static_cast<int>(ceil_div(k, stage_k)), to);  // narrow-ok: host looked
      if (tile.product == 0) atomicAdd(p_.counters + p_.at.asked(), 1U);
    }
  }

 private:
  static constexpr index_t stage_k = Tile::elements::stage_k;

  /// A block that begins with down has time: gate_up is read first.
  __device__ void give_way() const {
    while (2 * counted(p_.counters + p_.at.asked()) < queue_.gate_up_tiles()) {
    }
  }

  __device__ void load_weights(layer_tile const& tile, int k, int slot) const {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
    shared_barrier& filled = memory_.of.stages.filled[slot];
    auto const bytes = static_cast<std::uint32_t>(  // narrow-ok: a stage
        Tile::weight_bytes + tile.eights() * 1024);
    cute::set_barrier_transaction_bytes(filled, bytes);
    cute::SM90_TMA_LOAD_3D::copy(&p_.product[tile.product].weights[tile.part], &filled, hint,
                                 memory_.of.stage[slot], k * Tile::elements::stage_k, tile.out,
                                 tile.expert);
  }
  __device__ void load_x(layer_tile const& tile, int k, int slot) const {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    static_assert(Tile::rows <= 16);
    int const box = tile.eights() - 1;
    cute::SM90_TMA_LOAD_2D::copy(&p_.product[tile.product].x[box], &memory_.of.stages.filled[slot],
                                 hint, memory_.of.stage[slot] + Tile::weight_bytes,
                                 k * Tile::elements::stage_k, tile.row);
  }

  /// The number of the next tile. It is taken when this one is nearly on its way: not by a block
  /// that has to wait, as long as others have not.
  [[nodiscard]] __device__ unsigned load(layer_tile const& tile, int k_blocks,
                                         layer_tile_place const& place) {
    constexpr int before_end = 4;
    auto& stages = memory_.of.stages;
    shared_barrier const& x_there = memory_.x_there[place.slot];
    int asked = 0;  // blocks along k whose x is on its way
    bool there = false, taken = false;
    unsigned next = 0;
    auto const ask = [&](int end) {
#pragma unroll 4
      for (; asked < end; ++asked, x_at_.next()) load_x(tile, asked, x_at_.slot);
    };
#pragma unroll 1
    for (int k = 0; k < k_blocks; ++k, at_.next()) {
      if (!there) {
        there = is_past(x_there, place.parity);
        if (!there && k == Tile::stages) {
          await(x_there, place.parity);
          there = true;
        }
        if (there) fence_copies(), ask(k);
      }
      stages.await_free(at_);
      load_weights(tile, k, at_.slot);
      if (!there) continue;
      ask(k + 1);
      if (!taken && k + before_end >= k_blocks) {
        next = atomicAdd(p_.counters, 1U);
        taken = true;
      }
    }
    if (!there) await(x_there, place.parity), fence_copies();
    ask(k_blocks);
    return taken ? next : atomicAdd(p_.counters, 1U);
  }

  sm90_fused_layer_parameters const& p_;
  layer_memory<Tile>& memory_;
  layer_queue<Tile> queue_;
  ring_place<Tile::stages> at_, x_at_;
};

/// By two warps, as swap_ab_scale_producer, but for few rows: a thread has a block along k, so that
/// all scales are asked for at once.
template <class Tile>
class layer_factors {
 public:
  __device__ layer_factors(sm90_fused_layer_parameters const& p, layer_memory<Tile>& memory,
                           int number)
      : p_(p), memory_(memory), number_(number) {}

  __device__ void run() {
    layer_reader<Tile> reader(memory_);
    for (;;) {
      layer_tile const tile = reader.await();
      if (tile.expert < 0) return;
      sm90_gemm_parameters const& p = p_.product[tile.product];
      index_t const k = ceil_div(p.k, index_t{Tile::elements::stage_k});
      auto const k_blocks = static_cast<int>(k);  // narrow-ok: host looked
      float of_weights = weight_scale(tile, number_, k_blocks);
      await(memory_.x_there[reader.at().slot], reader.at().parity);
      reader.done();
#pragma unroll 1
      for (int first = 0; first < k_blocks; first += threads) {
        if (first > 0) of_weights = weight_scale(tile, first + number_, k_blocks);
        make(tile, first, k_blocks, of_weights);
      }
    }
  }

 private:
  static constexpr int threads = 64;

  [[nodiscard]] __device__ float weight_scale(layer_tile const& tile, int k, int k_blocks) const {
    if (k >= k_blocks) return 0.0F;
    block_scales const& scales = p_.product[tile.product].weight_scales[tile.part];
    int const n = scales.data == nullptr ? 0 : tile.out / 128 / scales.n_blocks;
    return scale_row(scales, tile.expert, n).at(k);
  }

  /// Of blocks [first, first + threads) along k.
  __device__ void make(layer_tile const& tile, int first, int k_blocks, float of_weights) {
    swap_ab_memory<Tile>& memory = memory_.of;
    int const mine = first + number_;
    float of_rows[Tile::rows];
#pragma unroll
    for (int r = 0; r < Tile::rows; ++r) {
      bool const live = mine < k_blocks && r < tile.rows;
      scale_row const row(p_.product[tile.product].x_scales, 0, tile.row + (live ? r : 0));
      of_rows[r] = live ? row.at(mine) : 0.0F;
    }
#pragma unroll 1
    for (int i = 0; i < threads && first + i < k_blocks; ++i, at_.next()) {
      memory.stages.await_free(at_);
      if (number_ == i) {
        float* const to = memory.factor[at_.slot];
#pragma unroll
        for (int r = 0; r < Tile::rows; ++r) {
          if (r < tile.eights() * 8) to[Tile::factor_place(r)] = of_rows[r] * of_weights;
        }
      }
      __syncwarp();
      // Both warps, so that none falls behind by more than a round.
      if (lane_number() == 0) arrive(memory.stages.filled[at_.slot]);
    }
  }

  sm90_fused_layer_parameters const& p_;
  layer_memory<Tile>& memory_;
  int number_;
  ring_place<Tile::stages> at_;
};

}  // namespace moe64::cuda
