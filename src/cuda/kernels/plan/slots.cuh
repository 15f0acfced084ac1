#pragma once

#include "cuda/kernels/device/divide.cuh"
#include "cuda/kernels/device/number.cuh"
#include "cuda/kernels/plan/plan.hpp"

#include <cstdint>

/// How the kernels of plan see slots.
namespace moe64::cuda {

/// Offset in elements of a slot in a matrix [tokens, top_k].
__device__ inline index_t slot_offset(tensor_view const& matrix, index_t slot, index_t top_k) {
  if (matrix.stride[0] == matrix.stride[1] * top_k) return slot * matrix.stride[1];
  index_t const token = divide(slot, top_k);
  return offset_of(matrix, token, slot - token * top_k);
}

/// The id that a slot holds; a mask is a row of ids that are -1 where nothing is chosen.
__device__ inline index_t id_of(plan_parameters const& p, index_t slot) {
  index_t const offset = slot_offset(p.ids, slot, p.plan.top_k);
  if (p.ids.type == dtype::int32) return static_cast<std::int32_t const*>(p.ids.data)[offset];
  if (p.ids.type == dtype::int64) return static_cast<std::int64_t const*>(p.ids.data)[offset];
  bool const chosen = static_cast<std::uint8_t const*>(p.ids.data)[offset] != 0;
  return chosen ? slot - divide(slot, p.plan.top_k) * p.plan.top_k : -1;
}

/// The expert of this plan that an id names, or -1.
__device__ inline index_t local_of(plan_parameters const& p, index_t id) {
  std::uint64_t const local =
      static_cast<std::uint64_t>(id) - static_cast<std::uint64_t>(p.first_expert);
  return local < static_cast<std::uint64_t>(p.plan.experts) ? static_cast<index_t>(local) : -1;
}

/// How much of an expert's rows the capacity keeps.
__device__ inline std::int64_t kept_of(plan_parameters const& p, std::int64_t count) {
  return p.capacity >= 0 && count > p.capacity ? p.capacity : count;
}

[[nodiscard]] __device__ inline float weight_of(plan_parameters const& p, index_t slot) {
  if (!p.weights.present()) return 1.0F;
  return load_number(p.weights.type, p.weights.data, slot_offset(p.weights, slot, p.plan.top_k));
}

/// The slot's row and weight; no row: -1, whatever the weight.
__device__ inline void write_slot(plan_parameters const& p, index_t slot, index_t row,
                                  float weight) {
  if (row >= 0) element<std::int64_t>(p.plan.row_to_slot, row) = slot;
  element<std::int64_t>(p.plan.slot_to_row, slot) = row;
  element<float>(p.plan.slot_weight, slot) = row >= 0 ? weight : 0.0F;
}

/// What one thread has seen of slots that belong to no expert of this plan.
struct others_seen {
  std::uint32_t skipped = 0, elsewhere = 0, invalid = 0;
  std::uint32_t first_invalid = ~0U;  ///< counted from the chunk's first slot

  __device__ void add(index_t experts_total, index_t id, std::uint32_t place) {
    if (id == -1 || id == experts_total) {
      ++skipped;
    } else if (id >= 0 && id < experts_total) {
      ++elsewhere;
    } else {
      ++invalid;
      first_invalid = min(first_invalid, place);
    }
  }
};

/// The same of a CTA, in shared memory. Integers: the order of additions does not matter.
struct cta_others {
  unsigned long long sum[plan_others::count];

  __device__ void clear() {
    if (threadIdx.x < plan_others::count) {
      sum[threadIdx.x] = threadIdx.x == plan_others::first_invalid ? ~0ULL >> 1 : 0;
    }
  }
  __device__ void add(others_seen const& seen, index_t first_slot) {
    constexpr unsigned all = ~0U;
    std::uint32_t const skipped = __reduce_add_sync(all, seen.skipped);
    std::uint32_t const elsewhere = __reduce_add_sync(all, seen.elsewhere);
    std::uint32_t const invalid = __reduce_add_sync(all, seen.invalid);
    std::uint32_t const first = __reduce_min_sync(all, seen.first_invalid);
    if (threadIdx.x % 32 != 0) return;
    if (skipped != 0) atomicAdd(&sum[plan_others::skipped], skipped);
    if (elsewhere != 0) atomicAdd(&sum[plan_others::elsewhere], elsewhere);
    if (invalid == 0) return;
    atomicAdd(&sum[plan_others::invalid], invalid);
    atomicMin(&sum[plan_others::first_invalid],
              static_cast<unsigned long long>(first_slot + first));
  }
};

/// The status of a plan, and what it says besides the others.
struct status_place {
  std::int64_t* status;
  index_t slots, kept;
  index_t stride = 1;
};

/// By one thread.
__device__ inline void write_status(status_place const& to,
                                    std::int64_t const (&others)[plan_others::count]) {
  auto const status = [&](index_t i) -> std::int64_t& { return to.status[i * to.stride]; };
  std::int64_t const invalid = others[plan_others::invalid];
  status(plan_status::kept) = to.kept;
  status(plan_status::skipped) = others[plan_others::skipped];
  status(plan_status::elsewhere) = others[plan_others::elsewhere];
  status(plan_status::dropped) =
      to.slots - to.kept - others[plan_others::skipped] - others[plan_others::elsewhere] - invalid;
  status(plan_status::invalid) = invalid;
  status(plan_status::first_invalid) = invalid > 0 ? others[plan_others::first_invalid] : -1;
}

__device__ inline void write_status(status_place const& to, cta_others const& others) {
  std::int64_t counted[plan_others::count];
  for (int i = 0; i < plan_others::count; ++i) {
    counted[i] = static_cast<std::int64_t>(others.sum[i]);
  }
  write_status(to, counted);
}

}  // namespace moe64::cuda
