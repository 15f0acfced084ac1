#pragma once

#include "cuda/kernels/gemm/sm80/codes.cuh"
#include "cuda/kernels/gemm/sm80/gemm.hpp"
#include "cuda/kernels/gemm/sm80/stage.cuh"

namespace moe64::cuda {

/// Codes of a stage to operand B, a vec16 per thread at a time, and that in three steps: they are
/// interleaved with the MMAs of the stage before, so that tensor cores and ALUs are busy together.
template <class Pair, class Tile, bool KMajor, mma_weights Weights>
class stage_dequantizer {
  static_assert(Weights == mma_weights::plain || Tile::outs == mma_code_outs);

 public:
  __device__ explicit stage_dequantizer(sm80_gemm_parameters const& p) : p_(p) {}

  /// Step `step` of [0, steps), from stage `codes` to operand `to`; along k `k_count` elements
  /// exist.
  __device__ void take(std::uint8_t const* codes, std::uint8_t* to, int step, int k_count) {
    int const vec16 = step / 3;
    if (step % 3 == 0) {
      load(codes, thread_number() + vec16 * Tile::threads);
      scale_ = scales_of(codes)[scale_index(line_of(vec16), along())];
    } else {
      store_half(codes, to, vec16, step % 3 == 2, k_count);
    }
  }

 private:
  static constexpr int lines = KMajor ? Tile::outs : stage_k;
  static constexpr int line_vec16s = (KMajor ? stage_k : Tile::outs) / 16;
  static constexpr int vec16s = lines * line_vec16s / Tile::threads;  ///< of a thread
  // The threads hold whole lines at a time, so all vec16s of a thread have the same place in
  // theirs.
  static_assert(vec16s * Tile::threads == lines * line_vec16s &&
                Tile::threads % (8 * line_vec16s) == 0);

 public:
  static constexpr int steps = 3 * vec16s;

 private:
  [[nodiscard]] static __device__ int line_of(int vec16) {
    return thread_number() / line_vec16s + vec16 * (lines / vec16s);
  }
  [[nodiscard]] static __device__ int along() { return thread_number() % line_vec16s * 16; }
  [[nodiscard]] static __device__ float const* scales_of(std::uint8_t const* codes) {
    return reinterpret_cast<float const*>(codes + Tile::code_bytes);
  }
  /// Of element `at` of a line.
  [[nodiscard]] __device__ int scale_index(int line, int at) const {
    int const n = KMajor ? line : at, k = KMajor ? at : line;
    return (k >> p_.grid.shift_k) * p_.grid.scales_n + (n >> p_.grid.shift_n);
  }

  [[nodiscard]] __device__ dtype type() const {
    return Weights == mma_weights::vec16_scaled_e4m3 ? dtype::e4m3 : p_.code;
  }
  __device__ void load(std::uint8_t const* codes, int vec16) {
    if (is_packed(type())) {
      uint2 const words = *reinterpret_cast<uint2 const*>(codes + vec16 * 8);
      codes_ = {{words.x, words.y, 0, 0}};
    } else {
      uint4 const words = *reinterpret_cast<uint4 const*>(codes + vec16 * 16);
      codes_ = {{words.x, words.y, words.z, words.w}};
    }
  }

  /// One of the two chunks of a vec16. Where lines are long, every other four threads begin with
  /// the second, so that eight threads have no bank conflict.
  __device__ void store_half(std::uint8_t const* codes, std::uint8_t* to, int vec16, bool second,
                             int k_count) const {
    if (line_vec16s > 4 && (thread_number() & 4) != 0) second = !second;
    half_run const halves = halves_of(type(), codes_, second);
    std::uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 pair = f16_pair::values(halves.pair[i]);
      if constexpr (Weights == mma_weights::element_scaled) {
        int const at = along() + 2 * i + (second ? 8 : 0);
        scale_elements(codes, line_of(vec16), at, k_count, pair);
      } else {
        pair.x *= scale_;
        pair.y *= scale_;
      }
      out[i] = Pair::of(pair.x, pair.y);
    }
    int const line = thread_number() / line_vec16s;
    int const chunk = 2 * (thread_number() % line_vec16s) + (second ? 1 : 0);
    int const at = line * line_vec16s * 2 + (chunk ^ (line % 8));
    auto* const chunks = reinterpret_cast<uint4*>(to) + vec16 * (lines / vec16s) * line_vec16s * 2;
    chunks[at] = {out[0], out[1], out[2], out[3]};
  }

  /// Each element by its own scale; past the end of k zero, not zero times a scale that may be NaN.
  __device__ void scale_elements(std::uint8_t const* codes, int line, int at, int k_count,
                                 float2& pair) const {
    float const* const scales = scales_of(codes);
    pair.x *= scales[scale_index(line, at)];
    pair.y *= scales[scale_index(line, at + 1)];
    if ((KMajor ? at : line) >= k_count) pair.x = 0.0F;
    if ((KMajor ? at + 1 : line) >= k_count) pair.y = 0.0F;
  }

  sm80_gemm_parameters const& p_;
  code_words codes_;
  float scale_;
};

}  // namespace moe64::cuda
