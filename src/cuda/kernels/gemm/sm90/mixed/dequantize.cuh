#pragma once

#include "cuda/kernels/gemm/sm80/codes.cuh"
#include "cuda/kernels/gemm/sm90/mixed/consumer.cuh"

/// Dequantisation: from codes and scales in shared memory to operand A in registers, the 16 pairs
/// of 64 x 64 weights that are a thread's. A weight is f32(code) times its scale, rounded to the
/// type of x: what `dequantize` writes.
namespace moe64::cuda {

/// Two codes as f16 times their scales, in f32, rounded once.
template <class Element>
[[nodiscard]] __device__ inline std::uint32_t scaled_pair(std::uint32_t halves, float2 scale) {
  float2 const values = f16_pair::values(halves);
  return Element::of(values.x * scale.x, values.y * scale.y);
}
template <class Element>
[[nodiscard]] __device__ inline std::uint32_t e4m3_pair(std::uint16_t codes, float2 scale) {
  return scaled_pair<Element>(e4m3_halves(codes, 0), scale);
}

/// Eight codes of 4 bits, the first in the lowest, as f16 whose upper bytes are in a table
/// (sm90_mixed_parameters::f16_upper_bytes).
__device__ __forceinline__ half_run w4_halves(std::uint32_t codes,
                                              std::uint32_t const (&table)[4]) {
  // A byte permute takes one of 8 bytes for each of four codes: twice, and the fourth bit decides.
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

/// Operand A of one panel (64 along k) after the other, for one consumer thread.
template <class Tile>
class mixed_dequantizer {
 public:
  __device__ __forceinline__ explicit mixed_dequantizer(mixed_consumer<Tile>& thread)
      : thread_(thread) {}

  /// Panel `panel` of a tile, which is in the current stage.
  __device__ __forceinline__ void operator()(int panel, a_fragment (&to)[Tile::steps]) const {
    constexpr bool blocks_in_chunk = !Tile::transposed && !Tile::w4;
    constexpr int panels_per_chunk = panels_per_block * (blocks_in_chunk ? scale_chunk : 1);
    if (panel % panels_per_chunk == 0) {
      if (panel > 0) thread_.release_scales();
      thread_.memory.scales.await_filled(thread_.scale);
    }
    if constexpr (Tile::transposed) {
      w8_transposed(panel, to);
    } else if constexpr (Tile::w4) {
      w4(panel, to);
    } else {
      w8(panel, to);
    }
    // Past the end of k there are no weights: zero, not zero times a scale that may be NaN.
    // (And a branch, before which the values are computed: before the WGMMA is waited for.)
    int const left = thread_.k_left(panel);
    if (left >= Tile::panel_k) return;
#pragma unroll
    for (int step = 0; step < Tile::steps; ++step) {
      if (step * 16 >= left) to[step] = {};
    }
  }

 private:
  using element = typename Tile::element;
  static constexpr int panels_per_block = 128 / Tile::panel_k;

  /// Where the line of codes of output `out` begins, and by what the TMA swizzle has exchanged its
  /// 16-byte chunks: the number of each XOR that. Output out + 8 has the same.
  [[nodiscard]] __device__ __forceinline__ std::uint8_t const* line() const {
    return thread_.memory.stage[thread_.stage.slot] + thread_.out * Tile::line_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ int swizzle() const {
    constexpr int chunks = Tile::line_bytes / 16;
    return thread_.lane / 4 / (8 / chunks) % chunks;
  }

  __device__ __forceinline__ void w8(int panel, a_fragment (&to)[Tile::steps]) const {
    float const* const scales = thread_.memory.scale[thread_.scale.slot];
    int const first = thread_.p.row_scales
                          ? thread_.out
                          : thread_.out / 128 * 128 + panel / panels_per_block % scale_chunk;
    float const two[2] = {scales[first], scales[thread_.p.row_scales ? first + 8 : first]};
    int const first_chunk = swizzle() ^ (panel % Tile::panels * 4);
#pragma unroll
    for (int step = 0; step < Tile::steps; ++step) {
      std::uint8_t const* const row = line() + (first_chunk ^ step) * 16 + thread_.lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        auto const codes =
            *reinterpret_cast<std::uint16_t const*>(row + i % 2 * 8 * Tile::line_bytes + i / 2 * 8);
        to[step].pair[i] = e4m3_pair<element>(codes, {two[i % 2], two[i % 2]});
      }
    }
  }

  /// 16 bytes are two steps of one output, in which each 4 bytes have 2 codes of a thread: a byte.
  __device__ __forceinline__ void w4(int panel, a_fragment (&to)[Tile::steps]) const {
    int const log2_k16_per_scale = thread_.p.groups[0].log2_k16_per_scale;
    float const* const scales = thread_.memory.scale[thread_.scale.slot] + thread_.out;
    unsigned const mine = 0x40U + 0x11U * (thread_.lane % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const chunk = swizzle() ^ (panel % Tile::panels * 2 + half);
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        auto const four =
            *reinterpret_cast<uint4 const*>(line() + lower * 8 * Tile::line_bytes + chunk * 16);
        std::uint32_t const codes = __byte_perm(__byte_perm(four.x, four.y, mine),
                                                __byte_perm(four.z, four.w, mine), 0x5410);
        half_run const halves = w4_halves(codes, thread_.p.f16_upper_bytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int const step = half * 2 + i / 2;
          int const group = (panel % panels_per_block * Tile::steps + step) >> log2_k16_per_scale;
          float const factor = scales[group * Tile::outs + lower * 8];
          to[step].pair[i % 2 * 2 + lower] = scaled_pair<element>(halves.pair[i], {factor, factor});
        }
      }
    }
  }

  /// Lines of 128 outputs: matrices of 8 along k x 8 pairs of outputs, by ldmatrix.trans as pairs,
  /// of which a thread gets two neighbours along k.
  __device__ __forceinline__ void w8_transposed(int panel, a_fragment (&to)[Tile::steps]) const {
    int const chunk = (thread_.out / 16) ^ (thread_.lane % 8);
    shared_address const lines =
        shared_address_of(thread_.memory.stage[thread_.stage.slot] +
                          (panel % Tile::panels * Tile::panel_k + thread_.lane) * 128 + chunk * 16);
    float const* const scales = thread_.memory.scale[thread_.scale.slot] +
                                panel % panels_per_block * Tile::panel_k + thread_.lane % 4 * 2;
#pragma unroll
    for (int quarter = 0; quarter < Tile::steps * 2; quarter += 4) {
      std::uint32_t words[4];
      load_matrices_transposed(words, lines + quarter * 8 * 128);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const step = (quarter + i) / 2, later = i % 2 * 2;
        // Two outputs of two elements along k become two elements along k of two outputs.
        std::uint32_t const pairs = __byte_perm(words[i], 0, 0x3120);
        float2 const two = *reinterpret_cast<float2 const*>(scales + (quarter + i) * 8);
        to[step].pair[later] = e4m3_pair<element>(static_cast<std::uint16_t>(pairs), two);
        to[step].pair[later + 1] = e4m3_pair<element>(static_cast<std::uint16_t>(pairs >> 16), two);
      }
    }
  }

  mixed_consumer<Tile>& thread_;
};

}  // namespace moe64::cuda
