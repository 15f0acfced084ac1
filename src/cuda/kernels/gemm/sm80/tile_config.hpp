#pragma once

#include "moe64/index.hpp"

/// All tiles of the kernels by mma.sync (m16n8k16) of sm_80, from which they are made. Which of
/// them a call gets is the table in cuda/gemm/sm80/heuristics.cpp.
namespace moe64::cuda {

/// K of a stage; its loop over k takes 16 at a time.
inline constexpr int stage_k = 64;

enum class mma_tile { m16n128, m32n128, m64n128, m128n64, m128n256, m256n128 };

struct mma_tile_config {
  char const* name;
  int rows, outs;            ///< M and N of a CTA
  int warp_rows, warp_outs;  ///< of a warp
  int stages;
  int ctas_per_sm;  ///< that an SM of sm_90 holds

  [[nodiscard]] constexpr int warps_along_rows() const { return rows / warp_rows; }
  [[nodiscard]] constexpr int threads() const { return 32 * warps_along_rows() * outs / warp_outs; }

  // Bytes of a stage: x, and weights of 16 bits or codes of at most 8 with their scales as f32.
  [[nodiscard]] constexpr int x_bytes() const { return rows * stage_k * 2; }
  [[nodiscard]] constexpr int weight_bytes() const { return outs * stage_k * 2; }
  [[nodiscard]] constexpr int code_bytes() const { return outs * stage_k; }
  [[nodiscard]] constexpr int most_scales() const { return outs * 4; }
  [[nodiscard]] constexpr int stage_bytes(bool quantized) const {
    return x_bytes() + (quantized ? code_bytes() + most_scales() * 4 : weight_bytes());
  }
  /// Of a CTA; quantised weights have a double buffer of dequantised ones.
  [[nodiscard]] constexpr int shared_bytes(bool quantized) const {
    return stages * stage_bytes(quantized) + (quantized ? 2 * weight_bytes() : 0);
  }
};

// A tile of many rows dequantises its weights once for all of them: m256n128 is for codes, m128n256
// for plain weights. m32n128 scales element by element, which takes more registers.
// clang-format off
inline constexpr mma_tile_config mma_tiles[] = {
    //             rows outs  of a warp  stages  CTAs
    {"m16n128",      16, 128,  16, 32,   5,      2},
    {"m32n128",      32, 128,  32, 32,   4,      2},
    {"m64n128",      64, 128,  32, 64,   4,      2},
    {"m128n64",     128,  64,  32, 64,   4,      2},
    {"m128n256",    128, 256,  64, 64,   4,      1},
    {"m256n128",    256, 128,  64, 64,   4,      1},
};
// clang-format on
[[nodiscard]] constexpr mma_tile_config const& config_of(mma_tile tile) {
  return mma_tiles[static_cast<int>(tile)];  // narrow-ok: an enumerator
}
[[nodiscard]] constexpr char const* name(mma_tile tile) { return config_of(tile).name; }

}  // namespace moe64::cuda
