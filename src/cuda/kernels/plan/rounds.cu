#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/device/thread_index.cuh"
#include "cuda/kernels/plan/rounds.hpp"
#include "cuda/kernels/plan/slots.cuh"

/// The plan of few slots in one launch, which is bound by latency: all loads are issued at the
/// beginning, parameters are few, and counts have 32 bits.
namespace moe64::cuda {
namespace {

using parameters = plan_rounds_parameters;

constexpr unsigned all_lanes = ~0U;
constexpr int warps = plan_threads / 32;
constexpr int unroll = 8;  ///< slots that a thread counts at a time
static_assert(plan_rounds_slots < 0x10000 && plan_rounds_step == plan_threads);

__device__ index_t id_at(parameters const& p, int slot) {
  if (p.ids_type == dtype::int32) return static_cast<std::int32_t const*>(p.ids)[slot];
  if (p.ids_type == dtype::int64) return static_cast<std::int64_t const*>(p.ids)[slot];
  return static_cast<std::uint8_t const*>(p.ids)[slot] != 0 ? slot % p.top_k : -1;
}

/// The expert of this plan that an id names, or -1.
__device__ int local_at(parameters const& p, index_t id) {
  std::uint64_t const local =
      static_cast<std::uint64_t>(id) - static_cast<std::uint64_t>(p.first_expert);
  bool const here = local < static_cast<std::uint64_t>(p.experts);
  return here ? static_cast<int>(local) : -1;  // narrow-ok: below plan_rounds_experts
}

/// The counters of a CTA, [experts] each.
struct shared_counts {
  std::uint32_t* counted;  ///< all slots in the lower half, those before this round in the upper
  int* first;              ///< the first row
  /// [warps, experts]: slots of this round; later: slots before those of the warp.
  std::uint16_t* of_warp;

  __device__ explicit shared_counts(std::uint32_t* memory, int experts)
      : counted(memory),
        first(reinterpret_cast<int*>(counted + experts)),
        of_warp(reinterpret_cast<std::uint16_t*>(first + experts)) {}
  [[nodiscard]] static constexpr index_t words(index_t experts) {
    return experts * (2 + warps / 2);
  }
};

/// Inclusive prefix sum over the lanes.
__device__ int inclusive_sum(int value) {
  for (int step = 1; step < 32; step *= 2) {
    int const below = __shfl_up_sync(all_lanes, value, step);
    if (lane_number() >= step) value += below;
  }
  return value;
}

/// The first row of each expert, and of each warp the slots of earlier rounds and warps, as prefix
/// sums. Returns the number of rows.
__device__ int scan_counts(parameters const& p, shared_counts const& counts) {
  __shared__ int warp_sums[warps];
  int rows = 0;
  for (int first_expert = 0; first_expert < p.experts; first_expert += plan_threads) {
    int const e = first_expert + thread_number();
    bool const exists = e < p.experts;
    std::uint32_t const word = exists ? counts.counted[e] : 0;
    int const kept = min(static_cast<int>(word & 0xffffU), p.most_rows);  // narrow-ok: 16 bits
    int const sum = inclusive_sum(kept);
    if (lane_number() == 31) warp_sums[warp_number()] = sum;
    if (exists) {
      std::uint32_t before = word >> 16;
#pragma unroll
      for (int w = 0; w < warps; ++w) {
        std::uint16_t& place = counts.of_warp[w * p.experts + e];
        std::uint32_t const count = place;
        place = static_cast<std::uint16_t>(before);  // narrow-ok: at most plan_rounds_slots
        before += count;
      }
    }
    __syncthreads();
    int first = rows + sum - kept;
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      if (w < warp_number()) first += warp_sums[w];
      rows += warp_sums[w];
    }
    if (exists) {
      counts.first[e] = first;
      if (blockIdx.x == 0) p.expert_begin[e + 1] = first + kept;
    }
    __syncthreads();
  }
  return rows;
}

/// Computes: the plan.
/// Grid: a CTA per plan_rounds_step slots: each counts all slots and sorts its own. PDL.
/// Threads: plan_threads.
/// Shared memory: shared_counts. Integer atomics.
/// Limits: fits_one_launch().
__global__ void __launch_bounds__(plan_threads) plan_rounds(parameters const p) {
  extern __shared__ std::uint32_t memory[];
  __shared__ cta_others others;
  pdl_begin();
  shared_counts const counts(memory, p.experts);
  int const begin = static_cast<int>(blockIdx.x) * plan_threads;  // narrow-ok: plan_rounds_slots
  int const slot = begin + thread_number();
  bool const exists = slot < p.slots;
  index_t const own_id = exists ? id_at(p, slot) : -1;
  index_t id[unroll];
  auto const load = [&](int at) {
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      int const other = at + i * plan_threads + thread_number();
      id[i] = other < p.slots ? id_at(p, other) : -1;
    }
  };
  load(0);
  float weight = 1.0F;
  if (exists && p.weights != nullptr) weight = load_number(p.weights_type, p.weights, slot);

  for (int i = thread_number(); i < shared_counts::words(p.experts); i += plan_threads) {
    memory[i] = 0;
  }
  if (blockIdx.x == 0) others.clear();
  __syncthreads();
  others_seen seen;
  for (int at = 0; at < p.slots;) {
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      int const other = at + i * plan_threads + thread_number();
      int const local = local_at(p, id[i]);
      if (local >= 0) {
        atomicAdd(&counts.counted[local], other < begin ? 0x10001U : 1U);
      } else if (blockIdx.x == 0 && other < p.slots) {
        seen.add(p.experts_total, id[i], static_cast<std::uint32_t>(other));  // narrow-ok: a slot
      }
    }
    at += unroll * plan_threads;
    if (at < p.slots) load(at);
  }
  int const expert = local_at(p, own_id);
  unsigned const equal = __match_any_sync(all_lanes, expert);
  int const place = __popc(equal & ((1U << lane_number()) - 1));
  std::uint16_t* const of_warp = counts.of_warp + warp_number() * p.experts;
  if (expert >= 0 && place == 0) {
    of_warp[expert] = static_cast<std::uint16_t>(__popc(equal));  // narrow-ok: at most 32
  }
  if (blockIdx.x == 0) others.add(seen, 0);
  __syncthreads();
  int const rows = scan_counts(p, counts);
  if (exists) {
    int row = -1;
    if (expert >= 0) {
      int const among = of_warp[expert] + place;
      if (among < p.most_rows) row = counts.first[expert] + among;
    }
    if (row >= 0) p.row_to_slot[row] = slot;
    p.slot_to_row[slot] = row;
    p.slot_weight[slot] = row >= 0 ? weight : 0.0F;
  }
  if (blockIdx.x == 0 && thread_number() == 0) {
    p.expert_begin[0] = 0;
    write_status({p.status, p.slots, rows}, others);
  }
}

}  // namespace

kernel<plan_rounds_parameters> plan_rounds_kernel() { return {"plan_rounds", plan_rounds, true}; }

index_t plan_rounds_shared(index_t experts) {
  return shared_counts::words(experts) * index_t{sizeof(std::uint32_t)};
}

}  // namespace moe64::cuda
