#pragma once

#include "cuda/runtime/kernel.hpp"
#include "moe64/routing.hpp"

#include <algorithm>

namespace moe64::cuda {

/// How the slots of a plan are cut into chunks, each sorted by one CTA. It depends on the extents
/// alone, and so does the scratch.
struct plan_cut {
  index_t chunks;       ///< at least 1
  index_t chunk_slots;  ///< of each but the last

  /// Slots that a CTA sorts in one round; a chunk is a multiple of it.
  static constexpr index_t round_slots = 512;
};

/// Enough chunks to occupy a large device, but a counter per chunk and expert must stay small
/// compared with the plan.
[[nodiscard]] constexpr plan_cut cut_slots(index_t slots, index_t experts) {
  constexpr index_t most_chunks = 528;
  constexpr index_t fewest_limit = 32;
  constexpr index_t most_counters = index_t{1} << 18;
  index_t const limit =
      std::clamp(most_counters / std::max<index_t>(experts, 1), fewest_limit, most_chunks);
  index_t const rounds = std::max<index_t>(ceil_div(slots, plan_cut::round_slots), 1);
  index_t const chunk_rounds = ceil_div(rounds, limit);
  return {ceil_div(rounds, chunk_rounds), chunk_rounds * plan_cut::round_slots};
}

/// What a chunk counts besides the slots of each expert: those without one here.
struct plan_others {
  static constexpr index_t skipped = 0;
  static constexpr index_t elsewhere = 1;
  static constexpr index_t invalid = 2;
  static constexpr index_t first_invalid = 3;  ///< a slot; the largest index_t when there is none
  static constexpr index_t count = 4;
};

/// plan_args for the kernels, and the arrays of the scratch.
struct plan_parameters {
  tensor_view ids;  ///< [tokens, top_k] int32, int64, or uint8: a mask
  tensor_view weights;
  routing_plan plan;
  index_t experts_total, first_expert, capacity;
  plan_cut cut;
  std::int64_t* counts;  ///< [experts, chunks]: slots, then how many lie in earlier chunks
  std::int64_t* totals;  ///< [experts]
  std::int64_t* others;  ///< [chunks, plan_others::count]
};

/// Experts whose bins shared memory has room for; more are sorted in several passes.
inline constexpr index_t plan_most_bins = 2048;
inline constexpr int plan_threads = 256;

/// The three steps of a stable counting sort: histogram per chunk and expert; prefix sum over the
/// chunks of each expert; scatter. A CTA per chunk, in the second step a warp per expert.
[[nodiscard]] kernel<plan_parameters> plan_count_kernel();
[[nodiscard]] kernel<plan_parameters> plan_scan_kernel();
[[nodiscard]] kernel<plan_parameters> plan_scatter_kernel();
[[nodiscard]] index_t plan_count_shared(index_t experts);
[[nodiscard]] index_t plan_scatter_shared(index_t experts);

/// One CTA in which every thread walks over all slots for each of its experts.
inline constexpr int plan_reference_threads = 1024;
[[nodiscard]] kernel<plan_parameters> plan_reference_kernel();

}  // namespace moe64::cuda
