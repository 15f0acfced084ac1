#pragma once

#include "cuda/kernels/activate/activation.cuh"
#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/gemm/sm90/fused_layer/tile.cuh"
#include "cuda/kernels/quantize/fp8_row_major.cuh"

namespace moe64::cuda {

/// By two warps, so that no consumer waits for it. The CTA that is the last to write gate and up of
/// a scale group quantises its activation, that which is the last to write outputs of down combines
/// them.
template <class Tile, dtype Type>
class layer_finisher {
 public:
  __device__ layer_finisher(sm90_fused_layer_parameters const& p, layer_memory<Tile>& memory)
      : p_(p), memory_(memory), thread_(thread_number() - layer_warp::first_finisher * 32) {}

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
    if (memory_.row_tile_count > 0) return;
    // Of no rows: zeros.
    index_t const width = p_.y.extent[1];
    for (index_t out = blockIdx.x * index_t{128}; out < width; out += gridDim.x * index_t{128}) {
      combine(static_cast<int>(out), 128);  // narrow-ok: host looked
    }
  }

 private:
  static constexpr int threads = finisher_warps * 32;

  __device__ void finish(layer_tile const& tile, int slot) const {
    int const out = tile.out / 128;
    if (tile.gemm == down) {
      if (is_last(p_.index.done(out), memory_.row_tile_count, slot)) combine(tile.out, 128);
      return;
    }
    if (!is_last(p_.index.written(tile.row_tile, out), p_.gemm[gate_up].parts, slot)) return;
    activate(tile);
    fence_before_tma();
    sync_finisher();
    if (thread_ == 0) static_cast<void>(add_one(p_.counters + p_.index.quantized(tile.row_tile)));
  }

  /// y of every token from its rows: outputs [first, first + count).
  __device__ void combine(int first, int count) const {
    constexpr int in_flight = 8;
    int const top_k = p_.plan.top_k, vec8s = count / 8;
    int const tokens = p_.plan.slots / top_k;
    for (int i = thread_; i < tokens * vec8s; i += threads) {
      int const token = i / vec8s, col = first + i % vec8s * 8;
      if (col >= p_.y.extent[1]) continue;
      float sum[8] = {};
      for (int k = 0; k < top_k; k += in_flight) {
        int row[in_flight];
        raw8<Type> loaded[in_flight];
        float weight[in_flight];
#pragma unroll
        for (int n = 0; n < in_flight; ++n) {
          int const slot = token * top_k + k + n;
          row[n] = k + n < top_k ? memory_.sorted.row[slot] : -1;
          if (row[n] < 0) continue;
          loaded[n] = load8<Type>(vec8_at(p_.rows, row[n], col));
          weight[n] = p_.weighted ? p_.plan.slot_weight[slot] : 1.0F;
        }
#pragma unroll
        for (int n = 0; n < in_flight; ++n) {
          if (row[n] < 0) continue;
          float value[8];
          decode8<Type>(loaded[n], value);
#pragma unroll
          for (int c = 0; c < 8; ++c) {
            sum[c] += p_.weighted ? weight[n] * value[c] : value[c];
          }
        }
      }
      store8<Type>(vec8_at(p_.y, token, col), encode8<Type>(sum));
    }
  }

  [[nodiscard]] static __device__ void* vec8_at(tensor_view const& matrix, int row, int col) {
    return static_cast<std::uint8_t*>(matrix.data) +
           (row * matrix.stride[matrix.rank - 2] + col) / 8 * bytes_of_8(Type);
  }

  static __device__ void sync_finisher() {
    cutlass::arch::NamedBarrier::arrive_and_wait(threads, 2U);
  }

  /// Whether the tile is the last of so many that count here. Then all that these wrote before is
  /// seen.
  [[nodiscard]] __device__ bool is_last(int counter, int of, int slot) const {
    if (thread_ == 0) {
      auto const before = static_cast<int>(add_one(p_.counters + counter));  // narrow-ok: few
      memory_.last[slot] = before + 1 == of ? 1 : 0;
    }
    sync_finisher();
    return memory_.last[slot] != 0;
  }

  /// 8 elements per thread: the fewer, the sooner it is done.
  __device__ void activate(layer_tile const& tile) const {
    constexpr int lanes = 16, rows_in_flight = threads / lanes;
    activate_row_major_parameters const& p = p_.activate;
    sixteenth_powers const powers = sixteenth_powers::load();
    auto const col = static_cast<std::uint32_t>(tile.out + thread_ % lanes * 8);  // narrow-ok: host
#pragma unroll 1
    for (int first = 0; first < tile.rows; first += rows_in_flight) {
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
