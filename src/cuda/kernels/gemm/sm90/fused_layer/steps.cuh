#pragma once

#include "cuda/kernels/activate/activation.cuh"
#include "cuda/kernels/device/fp8_row_major.cuh"
#include "cuda/kernels/gemm/sm90/fused_layer/tiles.cuh"

/// Who multiplies the tiles of layer_wgmma.cuh, and who finishes what is written.
namespace moe64::cuda {

/// Sums of few rows: the products of several stages are made at once, and scaled and added in their
/// order. One stage after the other would be a matter of latency.
template <class Tile, int Rows>
class layer_sums : public swap_ab_accumulators<Tile, Rows> {
 public:
  using swap_ab_accumulators<Tile, Rows>::swap_ab_accumulators;

  __device__ __forceinline__ void add_all(ring_place<Tile::stages>& at, int k_blocks) {
    constexpr int at_once = 4;
    int k = 0;
#pragma unroll 1
    for (; k + at_once <= k_blocks; k += at_once) add_stages<at_once>(at);
#pragma unroll 1
    for (; k < k_blocks; ++k) add_stages<1>(at);
  }

 private:
  template <int Count>
  __device__ __forceinline__ void add_stages(ring_place<Tile::stages>& at) {
    float made[Count][Rows / 2];
    int slot[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      slot[i] = at.slot;
      this->memory_.stages.await_filled(at);
      at.next();
      fence_registers(made[i]);
      cute::warpgroup_arrive();
      wgmma_stage<typename Tile::elements, Rows>(this->weights(slot[i]), this->rows(slot[i]),
                                                 made[i], true);
      cute::warpgroup_commit_batch();
    }
    add_made<Count>(made, slot);
  }
  /// From the first of Count stages whose products are on their way.
  template <int Left, int Count>
  __device__ __forceinline__ void add_made(float (&made)[Count][Rows / 2],
                                           int const (&slot)[Count]) {
    constexpr int i = Count - Left;
    cute::warpgroup_wait<Left - 1>();
    fence_registers(made[i]);
    this->promote(made[i], this->memory_.factor[slot[i]] + this->lane_ % 4 * Tile::factor_stride,
                  this->sums_);
    this->release(slot[i]);
    if constexpr (Left > 1) add_made<Left - 1>(made, slot);
  }
};

/// A tile by the code for its number of eights.
template <class Tile, int Rows = 8>
__device__ __forceinline__ void multiply_layer_tile(sm90_gemm_parameters const& p,
                                                    swap_ab_memory<Tile>& memory,
                                                    gemm_tile const& tile,
                                                    ring_place<Tile::stages>& at) {
  if constexpr (Rows < Tile::rows) {
    if (tile.rows > Rows) return multiply_layer_tile<Tile, Rows + 8>(p, memory, tile, at);
  }
  index_t const k = ceil_div(p.k, index_t{Tile::elements::stage_k});
  layer_sums<Tile, Rows> sums(p, memory, (warp_number() - layer_warps::multiplying) / 4);
  sums.add_all(at, static_cast<int>(k));  // narrow-ok: host looked
  sums.store(tile);
}

/// By a group of four warps.
template <class Tile>
__device__ void multiply_layer(sm90_fused_layer_parameters const& p, layer_memory<Tile>& memory) {
  int const group = (warp_number() - layer_warps::multiplying) / 4;
  layer_reader<Tile> reader(memory);
  ring_place<Tile::stages> at;
  ring_place<written_slots> written;
  layer_tile tile;
  while (reader.next(tile)) {
    sm90_gemm_parameters const& of = p.product[tile.product];
    load_output_terms(of, tile, group * 64, memory.of.terms[group]);
    multiply_layer_tile(of, memory.of, tile, at);
    memory.written.await_free(written);
    __syncwarp();
    if (lane_number() == 0) arrive(memory.written.filled[written.slot]);
    written.next();
  }
}

/// By two warps, so that nobody who multiplies waits for it. Who is the last to write a piece of
/// gate_up makes the codes of its activation, who is the last to write outputs combines them.
template <class Tile, dtype Type>
class layer_finisher {
 public:
  __device__ layer_finisher(sm90_fused_layer_parameters const& p, layer_memory<Tile>& memory)
      : p_(p), memory_(memory), thread_(thread_number() - layer_warps::finishing * 32) {}

  __device__ void run() {
    pdl_wait();
    layer_reader<Tile> reader(memory_);
    ring_place<written_slots> at;
    layer_tile tile;
    while (reader.next(tile)) {
      memory_.written.await_filled(at);
      finish(tile, at.slot);
      __syncwarp();
      if (lane_number() == 0) arrive(memory_.written.used[at.slot]);
      at.next();
    }
    if (memory_.units > 0) return;
    // Of no rows: zeros.
    index_t const width = p_.y.extent[1];
    for (index_t out = blockIdx.x * index_t{128}; out < width; out += gridDim.x * index_t{128}) {
      combine(static_cast<int>(out), 128);  // narrow-ok: host looked
    }
  }

 private:
  static constexpr int threads = 64;

  __device__ void finish(layer_tile const& tile, int slot) const {
    int const out = tile.out / 128;
    if (tile.product == 1) {
      if (is_last(p_.at.done(out), memory_.units, slot)) combine(tile.out, 128);
      return;
    }
    if (!is_last(p_.at.arrivals(tile.unit, out), p_.product[0].parts, slot)) return;
    activate(tile);
    fence_copies();
    await_all();
    if (thread_ == 0) static_cast<void>(count_one(p_.counters + p_.at.ready(tile.unit)));
  }

  /// y of every token from its rows: outputs [first, first + count).
  __device__ void combine(int first, int count) const {
    constexpr int at_once = 8;
    int const top_k = p_.plan.top_k, eights = count / 8;
    int const tokens = p_.plan.slots / top_k;
    for (int i = thread_; i < tokens * eights; i += threads) {
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

  [[nodiscard]] static __device__ void* eight(tensor_view const& matrix, int row, int col) {
    return static_cast<std::uint8_t*>(matrix.data) +
           (row * matrix.stride[matrix.rank - 2] + col) / 8 * bytes_of_8(Type);
  }

  static __device__ void await_all() { cutlass::arch::NamedBarrier::arrive_and_wait(threads, 2U); }

  /// Whether the tile is the last of so many that count here. Then all that these wrote before is
  /// seen.
  [[nodiscard]] __device__ bool is_last(int counter, int of, int slot) const {
    if (thread_ == 0) {
      auto const before = static_cast<int>(count_one(p_.counters + counter));  // narrow-ok: few
      memory_.last[slot] = before + 1 == of ? 1 : 0;
    }
    await_all();
    return memory_.last[slot] != 0;
  }

  /// Eight numbers per thread: the fewer, the sooner it is done.
  __device__ void activate(layer_tile const& tile) const {
    constexpr int lanes = 16, rows_at_once = threads / lanes;
    activate_row_major_parameters const& p = p_.activate;
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
      visit_kind(p.spec.kind, [&](auto kind) { activate_vec8<kind()>(p.spec, gate, up, powers); });
      std::uint32_t words = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) words = larger_halves<Type>(words, gate[0].word[i]);
      std::uint32_t largest = exists ? larger_half<Type>(words) : 0;
#pragma unroll
      for (int distance = lanes / 2; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(~0U, largest, distance));
      }
      block_factor const by = row_major_factor<Type>(largest);
      raw8<dtype::e4m3> const codes = by.reciprocal != 0.0F
                                          ? easy_codes_of<dtype::e4m3>(gate[0], by)
                                          : divided_codes_of<dtype::e4m3>(gate[0], by.factor);
      if (!exists) continue;
      store8<dtype::e4m3>(p.to.codes + row * p.to.code_step + col, codes);
      if (thread_ % lanes != 0) continue;
      p.to.scales[row * p.to.scale_step + std::uint64_t{col / row_major_group} * p.to.group_step] =
          __uint_as_float(by.scale);
    }
  }

  sm90_fused_layer_parameters const& p_;
  layer_memory<Tile>& memory_;
  int thread_;
};

}  // namespace moe64::cuda
