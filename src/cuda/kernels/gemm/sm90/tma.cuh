#pragma once

#include "cuda/kernels/device/expert_place.cuh"
#include "cuda/kernels/device/thread_index.cuh"
#include "cuda/kernels/gemm/sm90/gemm.hpp"
#include "cuda/kernels/gemm/sm90/pipeline.cuh"

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

/// What TMA loads of all kernels have in common; the instructions are those of cute/arch.
namespace moe64::cuda {

/// This CTA's rank in its cluster.
__device__ inline int rank_in_cluster() {
  return static_cast<int>(cute::block_rank_in_cluster());  // narrow-ok: below 16
}
/// Both CTAs of a cluster, as a multicast mask.
inline constexpr std::uint16_t both_ctas = 3;

/// L2 hints: of what is read again, and of weights.
inline constexpr auto keep_in_l2 =
    static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
__device__ inline std::uint64_t weights_l2_hint(bool evict_first) {
  using cute::TMA::CacheHintSm90;
  return static_cast<std::uint64_t>(evict_first ? CacheHintSm90::EVICT_FIRST
                                                : CacheHintSm90::EVICT_NORMAL);
}

/// The place of an expert's values as a coordinate. Without a place it is outside of the tensor,
/// where TMA fills in zeros.
__device__ inline int matrix_coordinate(part_places const& part, int expert) {
  return static_cast<int>(place_of(part.values, expert));  // narrow-ok: host looked
}

/// Where 8 outputs of a row lie among rows of 128 bytes, in the 128-byte swizzle of TMA: no bank
/// conflicts of STSM or of the reads behind it.
[[nodiscard]] __device__ inline int swizzled_place(int row, int vec8) {
  return row * 128 + (vec8 ^ (row % 8)) * 16;
}

/// By one thread: the first loads would wait for their descriptors.
__device__ inline void prefetch_maps(sm90_gemm_parameters const& p) {
  auto const prefetch = [](tensor_map const& map) {
    cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&map));
  };
  prefetch(p.weights[0]);
  if (p.parts > 1) prefetch(p.weights[1]);
  prefetch(p.x[0]);
}

}  // namespace moe64::cuda
