#pragma once

#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/few_slots.cuh"
#include "cuda/kernels/grouped_gemm_wgmma_kernel.cuh"
#include "cuda/kernels/layer_wgmma.hpp"
#include "cuda/kernels/usual.cuh"

/// The block of grouped_gemm_wgmma.cuh, which takes tiles of gate_up and then of down from one
/// queue. Who is the last to write a piece of gate_up makes the codes of its activation, who is the
/// last to write outputs combines them. A tile of down asks for its weights at once and waits for
/// the codes of its rows. It waits for tiles alone that were taken from the queue before it, by
/// blocks that run: so it gets them, however few blocks there is room for.
namespace moe64::cuda {

template <class Numbers, int Rows, int Stages>
struct layer_tile_shape : wgmma_tile<Numbers, Rows, Stages> {
  static constexpr int rows_out = 16;
  static constexpr int out_bytes = rows_out * 128;
};

/// Rows of one expert.
struct layer_unit {
  int expert, row, rows;
};

struct layer_tile : gemm_tile {
  int product, unit;
};

inline constexpr int layer_tile_slots = 2;

template <class Tile>
struct layer_memory {
  wgmma_memory<Tile> of;
  sorted_few sorted;
  int begins[few_slots];  ///< row of a slot with which a unit begins, or nobody
  layer_unit unit[few_slots];
  int units;
  layer_tile tile[layer_tile_slots];
  ring_barriers<layer_tile_slots> tiles;
  int last[2];  ///< per group: whether it is the last of those that count
};

/// By all threads; ends with a barrier.
template <class Tile>
__device__ void find_units(plan_rounds_parameters const& p, layer_memory<Tile>& memory) {
  int const slot = thread_number();
  index_t const id = slot < p.slots ? few_id(p, slot) : -1;
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

/// Tiles for one warp, as tile_reader.
template <class Tile>
class layer_reader {
 public:
  __device__ explicit layer_reader(layer_memory<Tile>& memory) : memory_(memory) {}
  __device__ bool next(layer_tile& tile) {
    memory_.tiles.await_filled(at_);
    tile = memory_.tile[at_.slot];
    __syncwarp();
    if (lane_number() == 0) arrive(memory_.tiles.used[at_.slot]);
    at_.next();
    return tile.expert >= 0;
  }

 private:
  layer_memory<Tile>& memory_;
  ring_place<layer_tile_slots> at_;
};

/// The tiles of all units in one row: those of gate_up, then those of down.
template <class Tile>
class layer_queue {
 public:
  __device__ layer_queue(layer_wgmma_parameters const& p, layer_memory<Tile> const& memory)
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

 private:
  [[nodiscard]] static __device__ unsigned tiles_of(grouped_gemm_wgmma_parameters const& product) {
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
/// Between what threads write and what copy engines read.
__device__ inline void fence_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Whether x of a tile can be read: by one thread or by a warp.
template <class Tile>
class x_watch {
 public:
  __device__ explicit x_watch(layer_wgmma_parameters const& p) : p_(p) {}

  /// Without asking memory.
  [[nodiscard]] __device__ bool is_known(layer_tile const& tile) const {
    return awaited_ && tile.product == 0;
  }
  [[nodiscard]] __device__ bool is_there(layer_tile const& tile) const {
    if (!awaited_) return false;
    if (tile.product == 0) return true;
    std::uint32_t const groups = counted(p_.counters + p_.at.ready(tile.unit));
    return groups == static_cast<std::uint32_t>(p_.at.groups);  // narrow-ok: host looked
  }
  __device__ bool await(layer_tile const& tile) {
    if (!awaited_) await_earlier();
    awaited_ = true;
    while (!is_there(tile)) {
    }
    return true;
  }

 private:
  layer_wgmma_parameters const& p_;
  bool awaited_ = false;
};

/// By one thread: takes tiles from the queue and has their stages filled. As stage_loader, but
/// weights do not wait for x.
template <class Tile>
class layer_loader {
 public:
  __device__ layer_loader(layer_wgmma_parameters const& p, layer_memory<Tile>& memory)
      : p_(p), memory_(memory), queue_(p, memory), x_(p) {}

  /// From tile `number` on.
  __device__ void run(unsigned number) {
    ring_place<layer_tile_slots> to;
    for (;; to.next()) {
      layer_tile const tile = queue_[number];
      memory_.tiles.await_free(to);
      memory_.tile[to.slot] = tile;
      arrive(memory_.tiles.filled[to.slot]);
      if (tile.expert < 0) return;
      index_t const k = p_.product[tile.product].k;
      number = load(tile, static_cast<int>(ceil_div(k, stage_k)));  // narrow-ok: host looked
    }
  }

 private:
  __device__ void load_weights(layer_tile const& tile, int k, int slot) const {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
    shared_barrier& filled = memory_.of.stages.filled[slot];
    auto const bytes = static_cast<std::uint32_t>(  // narrow-ok: a stage
        Tile::weight_bytes + tile.eights() * 1024);
    cute::set_barrier_transaction_bytes(filled, bytes);
    cute::SM90_TMA_LOAD_3D::copy(&p_.product[tile.product].weights[tile.part], &filled, hint,
                                 memory_.of.stage[slot], k * Tile::numbers::stage_k, tile.out,
                                 tile.expert);
  }
  __device__ void load_x(layer_tile const& tile, int k, int slot) const {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    static_assert(Tile::rows <= 16);
    int const box = tile.eights() - 1;
    cute::SM90_TMA_LOAD_2D::copy(&p_.product[tile.product].x[box], &memory_.of.stages.filled[slot],
                                 hint, memory_.of.stage[slot] + Tile::weight_bytes,
                                 k * Tile::numbers::stage_k, tile.row);
  }

  /// The number of the next tile. It is taken when this one is nearly on its way: not by a block
  /// that has to wait, as long as others have not.
  [[nodiscard]] __device__ unsigned load(layer_tile const& tile, int k_blocks) {
    constexpr int before_end = 4;
    auto& stages = memory_.of.stages;
    int asked = 0;  // blocks along k whose x is on its way
    bool there = x_.is_known(tile), taken = false;
    unsigned next = 0;
    auto const ask = [&](int end) {
#pragma unroll 1
      for (; asked < end; ++asked, x_at_.next()) load_x(tile, asked, x_at_.slot);
    };
#pragma unroll 1
    for (int k = 0; k < k_blocks; ++k, at_.next()) {
      // To ask whether x is there takes an answer of memory: where there is nothing else to do.
      if (!there && !stages.is_free(at_)) {
        there = k - asked == Tile::stages ? x_.await(tile) : x_.is_there(tile);
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
    if (!there) x_.await(tile), fence_copies();
    ask(k_blocks);
    return taken ? next : atomicAdd(p_.counters, 1U);
  }

  static constexpr index_t stage_k = Tile::numbers::stage_k;

  layer_wgmma_parameters const& p_;
  layer_memory<Tile>& memory_;
  layer_queue<Tile> queue_;
  x_watch<Tile> x_;
  ring_place<Tile::stages> at_, x_at_;
};

/// By two warps, as factor_maker, but for few rows: a thread has a block along k, so that all
/// scales are asked for at once.
template <class Tile>
class layer_factors {
 public:
  __device__ layer_factors(layer_wgmma_parameters const& p, layer_memory<Tile>& memory, int number)
      : p_(p), memory_(memory.of), x_(p), number_(number) {}

  __device__ void make(layer_tile const& tile, int k_blocks) {
    grouped_gemm_wgmma_parameters const& p = p_.product[tile.product];
    wgmma_scales const& scales = p.weight_scales[tile.part];
    int const n = scales.data == nullptr ? 0 : tile.out / 128 / scales.n_blocks;
    scale_row const outs(scales, tile.expert, n);
#pragma unroll 1
    for (int first = 0; first < k_blocks; first += threads) {
      int const mine = first + number_;
      bool const exists = mine < k_blocks;
      float const of_weights = exists ? outs.at(mine) : 0.0F;
      if (first == 0) static_cast<void>(x_.await(tile));
      __syncwarp();
      float of_rows[Tile::rows];
#pragma unroll
      for (int r = 0; r < Tile::rows; ++r) {
        bool const live = exists && r < tile.rows;
        of_rows[r] = live ? scale_row(p.x_scales, 0, tile.row + r).at(mine) : 0.0F;
      }
#pragma unroll 1
      for (int i = 0; i < threads && first + i < k_blocks; ++i, at_.next()) {
        memory_.stages.await_free(at_);
        if (number_ != i) continue;
        float* const to = memory_.factor[at_.slot];
#pragma unroll
        for (int r = 0; r < Tile::rows; ++r) {
          if (r < tile.eights() * 8) to[Tile::factor_place(r)] = of_rows[r] * of_weights;
        }
        arrive(memory_.stages.filled[at_.slot]);
      }
    }
  }

 private:
  static constexpr int threads = 64;
  layer_wgmma_parameters const& p_;
  wgmma_memory<Tile>& memory_;
  x_watch<Tile> x_;
  int number_;
  ring_place<Tile::stages> at_;
};

/// What a group of four warps does behind its sums.
template <class Tile, dtype Type>
class layer_steps {
 public:
  __device__ layer_steps(layer_wgmma_parameters const& p, layer_memory<Tile>& memory, int group)
      : p_(p), memory_(memory), group_(group), thread_(thread_number() % 128) {}

  /// The group has written its 64 outputs of the tile.
  __device__ void written(layer_tile const& tile) {
    if (tile.product == 0) {
      int const groups = 2 * p_.product[0].parts;
      if (!is_last(p_.at.arrivals(tile.unit, tile.out / 128), groups)) return;
      activate(tile);
    } else {
      int const out = tile.out + group_ * 64;
      if (out >= p_.product[1].n_part) return;
      if (is_last(p_.at.done(out / 64), memory_.units)) combine(out, 64);
    }
  }

  /// y of every token from its rows: outputs [first, first + count).
  __device__ void combine(int first, int count) const {
    constexpr int at_once = 8;
    int const top_k = p_.plan.top_k, eights = count / 8;
    int const tokens = p_.plan.slots / top_k;
    for (int i = thread_; i < tokens * eights; i += 128) {
      int const token = i / eights, col = first + i % eights * 8;
      if (col >= p_.y.extent[1]) continue;
      float sum[8] = {};
      for (int k = 0; k < top_k; k += at_once) {
        int row[at_once];
        raw8<Type> loaded[at_once];
        float weight[at_once];
#pragma unroll
        for (int n = 0; n < at_once; ++n) {
          int const slot = token * top_k + k + n;
          row[n] = k + n < top_k ? memory_.sorted.row[slot] : -1;
          if (row[n] < 0) continue;
          loaded[n] = load8<Type>(eight(p_.rows, row[n], col));
          weight[n] = p_.weighted ? p_.plan.slot_weight[slot] : 1.0F;
        }
#pragma unroll
        for (int n = 0; n < at_once; ++n) {
          if (row[n] < 0) continue;
          float number[8];
          decode8<Type>(loaded[n], number);
#pragma unroll
          for (int c = 0; c < 8; ++c) {
            sum[c] += p_.weighted ? weight[n] * number[c] : number[c];
          }
        }
      }
      store8<Type>(eight(p_.y, token, col), encode8<Type>(sum));
    }
  }

 private:
  [[nodiscard]] static __device__ void* eight(tensor_view const& matrix, int row, int col) {
    return static_cast<std::uint8_t*>(matrix.data) +
           (row * matrix.stride[matrix.rank - 2] + col) / 8 * bytes_of_8(Type);
  }

  /// For all threads of the group: whether it is the last of so many that come here. Then all that
  /// these wrote before is seen.
  [[nodiscard]] __device__ bool is_last(int counter, int of) {
    await_group(group_);
    if (thread_ == 0) {
      __threadfence();
      auto const before = static_cast<int>(atomicAdd(p_.counters + counter, 1U));  // narrow-ok: few
      __threadfence();
      memory_.last[group_] = before + 1 == of ? 1 : 0;
    }
    await_group(group_);
    return memory_.last[group_] != 0;
  }

  /// Eight numbers per thread: the fewer, the sooner it is done.
  __device__ void activate(layer_tile const& tile) {
    constexpr int lanes = 16, rows_at_once = 128 / lanes;
    activate_usual_parameters const& p = p_.activate;
    sixteenth_powers const powers = sixteenth_powers::load();
    auto const col = static_cast<std::uint32_t>(tile.out + thread_ % lanes * 8);  // narrow-ok: host
#pragma unroll 1
    for (int first = 0; first < tile.rows; first += rows_at_once) {
      int const in_tile = first + thread_ / lanes;
      bool const exists = in_tile < tile.rows && col < p.to.cols;
      auto const row = static_cast<std::uint64_t>(tile.row + in_tile);  // narrow-ok: not negative
      raw8<Type> gate[1] = {}, up[1] = {};
      if (exists) {
        gate[0] = load8<Type>(p.gate.data + row * p.gate.step + 2 * col);
        if (p.up.data != nullptr) up[0] = load8<Type>(p.up.data + row * p.up.step + 2 * col);
      }
      visit_kind(p.spec.kind,
                 [&](auto kind) { activate_eights<kind()>(p.spec, gate, up, powers); });
      std::uint32_t words = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) words = larger_halves<Type>(words, gate[0].word[i]);
      std::uint32_t largest = exists ? larger_half<Type>(words) : 0;
#pragma unroll
      for (int distance = lanes / 2; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(~0U, largest, distance));
      }
      block_factor const by = usual_factor<Type>(largest);
      raw8<dtype::e4m3> const codes = by.reciprocal != 0.0F
                                          ? easy_codes_of<dtype::e4m3>(gate[0], by)
                                          : divided_codes_of<dtype::e4m3>(gate[0], by.factor);
      if (!exists) continue;
      store8<dtype::e4m3>(p.to.codes + row * p.to.code_step + col, codes);
      if (thread_ % lanes != 0) continue;
      p.to.scales[row * p.to.scale_step + std::uint64_t{col / usual_group} * p.to.group_step] =
          __uint_as_float(by.scale);
    }
    fence_copies();
    await_group(group_);
    if (thread_ != 0) return;
    __threadfence();
    atomicAdd(p_.counters + p_.at.ready(tile.unit), 1U);
  }

  layer_wgmma_parameters const& p_;
  layer_memory<Tile>& memory_;
  int group_, thread_;
};

}  // namespace moe64::cuda
