#pragma once

#include "cuda/kernels/device/thread_index.cuh"
#include "cuda/kernels/gemm/sm80/codes.cuh"
#include "cuda/kernels/gemm/sm90/mixed/stage.cuh"

/// What threads of the groups do with stages, and how codes become numbers.
namespace moe64::cuda {

/// Two codes, decoded to f16, as numbers of the left operand: scaled in f32, rounded once more.
template <class Left>
[[nodiscard]] __device__ inline std::uint32_t scaled_pair(std::uint32_t halves, float2 scale) {
  float2 const numbers = f16_pair::numbers(halves);
  return Left::of(numbers.x * scale.x, numbers.y * scale.y);
}
template <class Left>
[[nodiscard]] __device__ inline std::uint32_t e4m3_pair(std::uint16_t codes, float2 scale) {
  return scaled_pair<Left>(e4m3_halves(codes, 0), scale);
}

/// Eight codes of 4 bits, the first in the lowest, as f16 by a table of their upper bytes
/// (sm90_mixed_parameters::four_bits).
__device__ __forceinline__ half_run four_bit_halves(std::uint32_t codes,
                                                    std::uint32_t const (&table)[4]) {
  // A permutation takes one of 8 bytes for each of four codes: twice, and the fourth bit decides.
  std::uint32_t const low_bits = codes & 0x77777777U, fourth = codes >> 3 & 0x11111111U;
  half_run run;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t const at = low_bits >> half * 16;
    std::uint32_t const lower = __byte_perm(table[0], table[1], at);
    std::uint32_t const upper = __byte_perm(table[2], table[3], at);
    std::uint32_t const takes_upper = __byte_perm(0xff00U, 0, fourth >> half * 16);
    std::uint32_t const bytes = (lower & ~takes_upper) | (upper & takes_upper);
    run.pair[half * 2] = spread_high(bytes, 0);
    run.pair[half * 2 + 1] = spread_high(bytes, 1);
  }
  return run;
}

/// Where a thread of the groups is: in the rings, and in the tile.
template <class Tile>
struct mixed_consumer {
  sm90_mixed_parameters const& p;
  mixed_memory<Tile>& memory;
  int group, lane, out;  ///< out: the first of its two outputs of the tile
  ring_place<Tile::stages> stage;
  ring_place<Tile::scale_slots> scale;
  /// Bit 0: the parity of last_multiplied; bit 1: that of the one slot of low_ranks; bit 2: the
  /// stage before this one has y in it. In one register, since there is none to spare.
  unsigned turn = 0;
  float addend[2];  ///< bias of its outputs

  __device__ mixed_consumer(sm90_mixed_parameters const& parameters, mixed_memory<Tile>& shared)
      : p(parameters),
        memory(shared),
        group(warp_number() / 4 - 1),
        lane(lane_number()),
        out(group * 64 + warp_number() % 4 * 16 + lane / 4 * (Tile::transposed ? 2 : 1)) {}

  [[nodiscard]] __device__ ring_place<low_rank_slots> low_rank() const {
    return {0, turn >> 1 & 1};
  }
  __device__ void next_low_rank() {
    arrive(memory.low_ranks.used[0]);
    turn ^= 2;
  }
  __device__ void await_group() const {
    auto const barrier =
        static_cast<std::uint32_t>(thread_index::number() / 128);  // narrow-ok: 1, 2
    cutlass::arch::NamedBarrier::arrive_and_wait(128, barrier);
  }

  /// By the whole warp: it will not look at the stage again.
  __device__ void release(int slot) const {
    end_reads();
    __syncwarp();
    if constexpr (Tile::cluster == 1) {
      if (lane == 0) arrive(memory.stages.used[slot]);
    } else {
      arrive_at(memory.stages.used[slot], lane, lane < Tile::cluster);
    }
  }
  /// By the whole warp, which is at the last stage of a tile and will lay out y there.
  __device__ void keep() {
    __syncwarp();
    if (lane == 0) arrive(memory.last_multiplied);
    turn |= kept;
  }
  /// Until all have multiplied the stage that is kept, the one before this. Gives where it is.
  [[nodiscard]] __device__ std::uint8_t* await_kept() {
    await(memory.last_multiplied, turn & 1U);
    turn ^= 1U;
    return memory.stage[slot_before(stage.slot)];
  }
  /// If a stage is kept, as soon as the copy engine has read it. `slot`: the stage behind it, which
  /// is the first of the next tile.
  __device__ void release_kept(int slot) {
    if ((turn & kept) == 0) return;
    cute::tma_store_wait<0>();
    turn ^= kept;
    release(slot_before(slot));
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
    if (!bias.present()) return;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      index_t const at = index_t{tile.out} + out + i * Tile::out_step;
      float const value = at < p.n_part
                              ? load_number(bias.type, bias.data, offset_of(bias, tile.expert, at))
                              : 0.0F;
      if (i == 0) addend[0] = value;
      if (i == 1) addend[1] = value;
    }
  }

  /// How many numbers there are from panel `number` of a tile on, up to the end of a part.
  [[nodiscard]] __device__ int left_along_k(int number) const {
    int const k = static_cast<int>(p.k_part);  // narrow-ok: host looked
    int const at = number * Tile::panel_k, panels_end = (k + 127) / 128 * 128;
    return k - (Tile::transposed && at >= panels_end ? at - panels_end : at);
  }

  /// The numbers of panel `number` of a tile, which is where the thread is.
  __device__ __forceinline__ void decode(int number, left_fragment (&to)[Tile::steps]) {
    constexpr bool many_in_chunk = !Tile::transposed && Tile::codes::bits == 8;
    constexpr int panels_per_chunk = panels_per_block * (many_in_chunk ? scale_chunk : 1);
    if (number % panels_per_chunk == 0) {
      if (number > 0) next_scales();
      memory.scales.await_filled(scale);
    }
    if constexpr (Tile::transposed) {
      decode_transposed(number, to);
    } else if constexpr (Tile::codes::bits == 8) {
      decode_eight_bits(number, to);
    } else {
      decode_four_bits(number, to);
    }
  }

 private:
  using left = typename Tile::left;
  static constexpr int panels_per_block = 128 / Tile::panel_k;
  static constexpr unsigned kept = 4;

  [[nodiscard]] static __device__ int slot_before(int slot) {
    return slot == 0 ? Tile::stages - 1 : slot - 1;
  }

  /// Where the line of codes of output `out` begins, and by what the copy engine has exchanged its
  /// 16s: the number of each XOR that. Output out + 8 has the same.
  [[nodiscard]] __device__ __forceinline__ std::uint8_t const* line() const {
    return memory.stage[stage.slot] + out * Tile::line_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ int exchanged() const {
    constexpr int sixteens = Tile::line_bytes / 16;
    return lane / 4 / (8 / sixteens) % sixteens;
  }

  __device__ __forceinline__ void decode_eight_bits(int number, left_fragment (&to)[Tile::steps]) {
    float const* const scales = memory.scale[scale.slot];
    int const first =
        p.row_scales ? out : out / 128 * 128 + number / panels_per_block % scale_chunk;
    float const two[2] = {scales[first], scales[p.row_scales ? first + 8 : first]};
    int const first_sixteen = exchanged() ^ (number % Tile::panels * 4);
#pragma unroll
    for (int step = 0; step < Tile::steps; ++step) {
      std::uint8_t const* const row = line() + (first_sixteen ^ step) * 16 + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        auto const codes =
            *reinterpret_cast<std::uint16_t const*>(row + i % 2 * 8 * Tile::line_bytes + i / 2 * 8);
        to[step].pair[i] = e4m3_pair<left>(codes, {two[i % 2], two[i % 2]});
      }
    }
  }

  /// 16 bytes are two steps of one output, in which each 4 bytes have 2 codes of a thread: a byte.
  __device__ __forceinline__ void decode_four_bits(int number, left_fragment (&to)[Tile::steps]) {
    int const log_steps = p.groups[0].log_steps;
    float const* const scales = memory.scale[scale.slot] + out;
    unsigned const mine = 0x40U + 0x11U * (lane % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const sixteen = exchanged() ^ (number % Tile::panels * 2 + half);
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        auto const four =
            *reinterpret_cast<uint4 const*>(line() + lower * 8 * Tile::line_bytes + sixteen * 16);
        std::uint32_t const codes = __byte_perm(__byte_perm(four.x, four.y, mine),
                                                __byte_perm(four.z, four.w, mine), 0x5410);
        half_run const halves = four_bit_halves(codes, p.four_bits);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int const step = half * 2 + i / 2;
          int const group = (number % panels_per_block * Tile::steps + step) >> log_steps;
          float const factor = scales[group * Tile::outs + lower * 8];
          to[step].pair[i % 2 * 2 + lower] = scaled_pair<left>(halves.pair[i], {factor, factor});
        }
      }
    }
  }

  /// Lines of 128 outputs: matrices of 8 along k x 8 pairs of outputs, transposed as pairs, of
  /// which a thread gets two neighbours along k.
  __device__ __forceinline__ void decode_transposed(int number, left_fragment (&to)[Tile::steps]) {
    int const chunk = (out / 16) ^ (lane % 8);
    shared_address const lines =
        shared_address_of(memory.stage[stage.slot] +
                          (number % Tile::panels * Tile::panel_k + lane) * 128 + chunk * 16);
    float const* const scales =
        memory.scale[scale.slot] + number % panels_per_block * Tile::panel_k + lane % 4 * 2;
#pragma unroll
    for (int quarter = 0; quarter < Tile::steps * 2; quarter += 4) {
      std::uint32_t words[4];
      load_matrices_transposed(words, lines + quarter * 8 * 128);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const step = (quarter + i) / 2, later = i % 2 * 2;
        // Two outputs of two numbers along k become two numbers along k of two outputs.
        std::uint32_t const pairs = __byte_perm(words[i], 0, 0x3120);
        float2 const two = *reinterpret_cast<float2 const*>(scales + (quarter + i) * 8);
        to[step].pair[later] = e4m3_pair<left>(static_cast<std::uint16_t>(pairs), two);
        to[step].pair[later + 1] = e4m3_pair<left>(static_cast<std::uint16_t>(pairs >> 16), two);
      }
    }
  }
};

}  // namespace moe64::cuda
