#pragma once

#include "cuda/kernels/permute/gather_fp8_row_major.hpp"
#include "cuda/kernels/plan/rounds.hpp"

/// The plan of so few slots that every CTA that needs it computes it, in shared memory.
namespace moe64::cuda {

inline constexpr int small_batch = 128;

/// Plan, gather and quantise in one launch: CTAs of plan_gather_threads with a vec16 of x per
/// thread, each of which sorts all slots; then a CTA that writes the plan, and one that clears
/// counters.
struct plan_gather_parameters {
  plan_rounds_parameters plan;  ///< at most small_batch slots
  gather_row_major_parameters gather;
  std::uint32_t* counters;  ///< [counter_words], zeros when the next kernel begins, or null
  int counter_words;
};
inline constexpr int plan_gather_threads = 128;
static_assert(plan_gather_threads >= small_batch && plan_gather_threads == gather_groups_threads);
[[nodiscard]] kernel<plan_gather_parameters> plan_gather_kernel(dtype x);

}  // namespace moe64::cuda
