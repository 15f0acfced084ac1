#pragma once

/// Who does what in a CTA: warpgroup 0 produces, the others consume. (fused_layer has roles of its
/// own: layer_warp.)
namespace moe64::cuda {

/// Warps of the producer warpgroup.
inline constexpr int scheduler_warp = 0;    ///< finds tiles and publishes them
inline constexpr int tma_warp = 1;          ///< one lane of it loads by TMA
inline constexpr int first_scale_warp = 2;  ///< scales: in W8A8 of this one and the next
inline constexpr int scale_warps = 2, scale_threads = scale_warps * 32;
inline constexpr int producer_warps = 4;

/// The thread of a warp that does what one thread does, as threadIdx.x counts.
[[nodiscard]] constexpr unsigned first_thread_of(int warp) {
  return static_cast<unsigned>(warp * 32);  // narrow-ok: a warp of a CTA
}

}  // namespace moe64::cuda
