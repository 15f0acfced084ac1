#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_decode.cuh"

#include <cuda_fp8.h>

namespace moe64::cuda {

/// Two codes as numbers of the left operand: scaled in f32, rounded once more.
struct e4m3_codes {
  template <class Left>
  [[nodiscard]] static __device__ std::uint32_t pair(std::uint16_t codes, float2 scale) {
    __half2 const exact(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
    float2 const numbers = __half22float2(exact);
    return Left::of(numbers.x * scale.x, numbers.y * scale.y);
  }
};

/// The codes of one panel that one thread decodes, and what the two of a pair are multiplied by.
struct panel_codes {
  std::uint16_t pair[4][4];
  float2 scale[4][4];
};

/// Where a thread of the groups is: in the rings, and in the tile.
template <class Tile>
struct decode_thread {
  grouped_gemm_decode_parameters const& p;
  decode_memory<Tile>& memory;
  int group, lane, out;  ///< out: the first of its two outputs of the tile
  ring_place<Tile::stages> stage;
  ring_place<scale_slots> scale;
  int turn = 0;     ///< which buffer of y is next
  float addend[2];  ///< bias of its outputs

  __device__ decode_thread(grouped_gemm_decode_parameters const& parameters,
                           decode_memory<Tile>& shared)
      : p(parameters),
        memory(shared),
        group(warp_number() / 4 - 1),
        lane(lane_number()),
        out(group * 64 + warp_number() % 4 * 16 + lane / 4 * (Tile::transposed ? 2 : 1)) {}

  [[nodiscard]] __device__ std::uint8_t* buffer() const { return memory.out[group][turn]; }
  __device__ void await_group() const {
    auto const barrier = static_cast<std::uint32_t>(group);  // narrow-ok: below 4
    cutlass::arch::NamedBarrier::arrive_and_wait(128, barrier);
  }

  /// By the whole warp: it will not look at the stage again.
  __device__ void release(int slot) const {
    __syncwarp();
    if constexpr (Tile::cluster == 1) {
      if (lane == 0) arrive(memory.stages.used[slot]);
    } else {
      arrive_at(memory.stages.used[slot], lane, lane < Tile::cluster);
    }
  }
  /// The right operand of an even or odd panel of the tile, which is where the thread is.
  [[nodiscard]] __device__ std::uint8_t const* x(int odd) const {
    return memory.stage[stage.slot] + Tile::weight_bytes + odd % Tile::panels * Tile::panel_bytes;
  }
  __device__ void next_scales() {
    __syncwarp();
    if (lane == 0) arrive(memory.scales.used[scale.slot]);
    scale.next();
  }

  __device__ void load_bias(gemm_tile const& tile) {
    tensor_view const& bias = p.bias[tile.part];
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      index_t const at = index_t{tile.out} + out + i * Tile::out_step;
      bool const live = bias.present() && at < p.n_part;
      float const value =
          live ? load_number(bias.type, bias.data, offset_of(bias, tile.expert, at)) : 0.0F;
      if (i == 0) addend[0] = value;
      if (i == 1) addend[1] = value;
    }
  }

  /// What this thread decodes of panel `number` of a tile, which is where it is.
  __device__ __forceinline__ void read(int number, panel_codes& codes) {
    constexpr int panels_per_block = 128 / Tile::panel_k;
    constexpr int panels_per_chunk = panels_per_block * (Tile::transposed ? 1 : scale_chunk);
    if (number % panels_per_chunk == 0) {
      if (number > 0) next_scales();
      memory.scales.await_filled(scale);
    }
    if constexpr (Tile::transposed) {
      read_transposed(number, codes);
    } else {
      read_plain(number, codes);
    }
  }

 private:
  __device__ __forceinline__ void read_plain(int number, panel_codes& codes) {
    constexpr int panels_per_block = 128 / Tile::panel_k;
    float const* const scales = memory.scale[scale.slot];
    int const first =
        p.row_scales ? out : out / 128 * 128 + number / panels_per_block % scale_chunk;
    float const two[2] = {scales[first], scales[p.row_scales ? first + 8 : first]};
    constexpr int row_chunks = Tile::stage_k / 16;
    int const swizzle = (lane / 4 / (8 / row_chunks) % row_chunks) ^ (number % Tile::panels * 4);
    int const base = out * Tile::stage_k + swizzle * 16 + lane % 4 * 2;
    std::uint8_t const* const stage_codes = memory.stage[stage.slot];
#pragma unroll
    for (int step = 0; step < Tile::steps; ++step) {
      std::uint8_t const* const row = stage_codes + (base ^ (step * 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        codes.pair[step][i] =
            *reinterpret_cast<std::uint16_t const*>(row + i % 2 * 8 * Tile::stage_k + i / 2 * 8);
        codes.scale[step][i] = {two[i % 2], two[i % 2]};
      }
    }
  }

  /// Lines of 128 outputs: matrices of 8 along k x 8 pairs of outputs, transposed as pairs, of
  /// which a thread gets two neighbours along k.
  __device__ __forceinline__ void read_transposed(int number, panel_codes& codes) {
    int const chunk = (out / 16) ^ (lane % 8);
    shared_address const lines =
        shared_address_of(memory.stage[stage.slot] +
                          (number % Tile::panels * Tile::panel_k + lane) * 128 + chunk * 16);
    float const* const scales =
        memory.scale[scale.slot] + number % (128 / Tile::panel_k) * Tile::panel_k + lane % 4 * 2;
#pragma unroll
    for (int quarter = 0; quarter < Tile::steps * 2; quarter += 4) {
      std::uint32_t words[4];
      load_matrices_transposed(words, lines + quarter * 8 * 128);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const step = (quarter + i) / 2, later = i % 2 * 2;
        // Two outputs of two numbers along k become two numbers along k of two outputs.
        std::uint32_t const pairs = __byte_perm(words[i], 0, 0x3120);
        codes.pair[step][later] = static_cast<std::uint16_t>(pairs);
        codes.pair[step][later + 1] = static_cast<std::uint16_t>(pairs >> 16);
        float2 const two = *reinterpret_cast<float2 const*>(scales + (quarter + i) * 8);
        codes.scale[step][later] = codes.scale[step][later + 1] = two;
      }
    }
  }
};

}  // namespace moe64::cuda
