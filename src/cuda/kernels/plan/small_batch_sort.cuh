#pragma once

#include "cuda/kernels/device/thread_index.cuh"
#include "cuda/kernels/plan/small_batch_sort.hpp"

namespace moe64::cuda {

/// All slots, sorted by comparing each with each.
struct small_batch_slots {
  static constexpr int nobody = 0x7fffffff;  ///< above all experts

  int named[small_batch];   ///< the expert that the slot names, or -1
  int expert[small_batch];  ///< the same where the slot has a row, else nobody
  int row[small_batch];     ///< or -1
};

/// A slot as its thread sees it.
struct small_batch_slot {
  index_t id;
  int expert;  ///< nobody: it has no row
  int row;     ///< or -1
  int among;   ///< rows of its expert before it
};

__device__ inline index_t id_of_slot(plan_rounds_parameters const& p, int slot) {
  // Past L1: with PDL this kernel may have begun before the ids were written (pdl.cuh).
  if (p.ids_type == dtype::int32) return __ldcg(static_cast<std::int32_t const*>(p.ids) + slot);
  return __ldcg(static_cast<long long const*>(p.ids) + slot);
}

/// The expert of this plan that an id names, or -1.
__device__ inline int local_expert(plan_rounds_parameters const& p, index_t id) {
  std::uint64_t const local =
      static_cast<std::uint64_t>(id) - static_cast<std::uint64_t>(p.first_expert);
  bool const here = local < static_cast<std::uint64_t>(p.experts);
  return here ? static_cast<int>(local) : -1;  // narrow-ok: below plan_rounds_experts
}

/// Slots that a warp sorts alone, one per lane.
inline constexpr int warp_slots = 32;

/// The same by a warp, for up to warp_slots slots, in registers.
__device__ inline small_batch_slot small_batch_sort_in_warp(plan_rounds_parameters const& p,
                                                            index_t id) {
  constexpr unsigned all = ~0U;
  int const slot = lane_number();
  int const local = slot < p.slots ? local_expert(p, id) : -1;
  unsigned const equal = __match_any_sync(all, local);
  int const among = __popc(equal & ((1U << slot) - 1));
  int const expert = local >= 0 && among < p.most_rows ? local : small_batch_slots::nobody;
  int before = 0;
  for (int s = 0; s < p.slots; ++s) before += __shfl_sync(all, expert, s) < expert ? 1 : 0;
  return {id, expert, expert == small_batch_slots::nobody ? -1 : before + among, among};
}

/// By all threads of a CTA of at least small_batch, the first of which have a slot each. Ends with
/// a barrier.
__device__ inline small_batch_slot small_batch_sort(plan_rounds_parameters const& p, index_t id,
                                                    small_batch_slots& memory) {
  int const slot = thread_number();
  bool const exists = slot < p.slots;
  int const local = exists ? local_expert(p, id) : -1;
  if (exists) memory.named[slot] = local;
  __syncthreads();
  int among = 0;
  if (local >= 0) {
    for (int s = 0; s < slot; ++s) among += memory.named[s] == local ? 1 : 0;
  }
  int const expert = local >= 0 && among < p.most_rows ? local : small_batch_slots::nobody;
  if (exists) memory.expert[slot] = expert;
  __syncthreads();
  int row = -1;
  if (expert != small_batch_slots::nobody) {
    row = among;
    for (int s = 0; s < p.slots; ++s) row += memory.expert[s] < expert ? 1 : 0;
  }
  if (exists) memory.row[slot] = row;
  __syncthreads();
  return {id, expert, row, among};
}

}  // namespace moe64::cuda
