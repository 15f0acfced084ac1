#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/plan/slots.cuh"
#include "cuda/kernels/plan/small_batch_sort.cuh"
#include "cuda/kernels/quantize/fp8_row_major.cuh"

namespace moe64::cuda {
namespace {

/// The arrays of the plan, by one CTA.
__device__ void write_plan(plan_rounds_parameters const& p, small_batch_slot const& mine,
                           float weight, small_batch_slots const& sorted) {
  __shared__ cta_others others;
  int const slot = thread_number();
  bool const exists = slot < p.slots;
  others.clear();
  int const rows = __syncthreads_count(mine.row >= 0 ? 1 : 0);
  others_seen seen;
  if (exists && local_expert(p, mine.id) < 0) {
    seen.add(p.experts_total, mine.id, static_cast<std::uint32_t>(slot));  // narrow-ok: a slot
  }
  others.add(seen, 0);
  if (exists) {
    if (mine.row >= 0) p.row_to_slot[mine.row] = slot;
    p.slot_to_row[slot] = mine.row;
    p.slot_weight[slot] = mine.row >= 0 ? weight : 0.0F;
  }
  for (int e = thread_number(); e <= p.experts; e += plan_gather_threads) {
    int begin = 0;
    for (int s = 0; s < p.slots; ++s) begin += sorted.expert[s] < e ? 1 : 0;
    p.expert_begin[e] = begin;
  }
  __syncthreads();
  if (thread_number() == 0) write_status({p.status, p.slots, rows}, others);
}

/// Zeros of the counters that the next kernel uses: with PDL it starts when this has been called.
__device__ void clear_counters(plan_gather_parameters const& p) {
  for (int i = thread_number(); i < p.counter_words; i += plan_gather_threads) {
    __stcg(p.counters + i, 0U);
  }
  __threadfence();
  __syncthreads();
  pdl_launch_dependents();
}

__device__ void make_plan(plan_rounds_parameters const& p, small_batch_slots& sorted) {
  int const slot = thread_number();
  bool const exists = slot < p.slots;
  index_t const id = exists ? id_of_slot(p, slot) : -1;
  float weight = 1.0F;
  if (exists && p.weights != nullptr) weight = load_number(p.weights_type, p.weights, slot);
  write_plan(p, small_batch_sort(p, id, sorted), weight, sorted);
}

/// Computes: the plan; codes e4m3 and scales f32 of each row = its token, a scale for every 128
///   columns; zeros as counters of the next kernel.
/// Grid: a CTA for a vec16 of x per thread, then one that writes the plan and one that clears
///   counters. PDL.
/// Threads: plan_gather_threads; 8 lanes hold a group.
/// Shared memory: the sorted slots; up to 32 slots are sorted by each warp in registers.
/// Limits: at most small_batch slots; takes_row_major() of gather.
template <dtype X>
__global__ void __launch_bounds__(plan_gather_threads)
    plan_gather_small_batch(plan_gather_parameters const p) {
  constexpr int width = quantize_row_major_width;
  constexpr std::uint32_t lanes = group_items<width>;
  __shared__ small_batch_slots sorted;
  pdl_wait();
  if (blockIdx.x == gridDim.x - 1) return clear_counters(p);
  pdl_launch_dependents();
  if (blockIdx.x == gridDim.x - 2) return make_plan(p.plan, sorted);
  bool const in_warp = p.plan.slots <= warp_slots;
  int const own_slot = in_warp ? lane_number() : thread_number();
  index_t const id = own_slot < p.plan.slots ? id_of_slot(p.plan, own_slot) : -1;
  row_major_target const& to = p.gather.to;
  auto const tokens = static_cast<std::uint32_t>(p.gather.tokens);  // narrow-ok: few
  std::uint32_t const items = tokens * items_of_row(to);
  row_item const at = row_item_of(to, blockIdx.x * plan_gather_threads + threadIdx.x, items, width);
  auto const x = load_item<X, width>(p.gather.x, at.exists ? at.row : 0, at.exists ? at.index : 0);
  int own_row = -1;
  if (in_warp) {
    own_row = small_batch_sort_in_warp(p.plan, id).row;
  } else {
    static_cast<void>(small_batch_sort(p.plan, id, sorted));
  }
  std::uint32_t const largest = at.exists ? largest_of(x) : 0;
  block_factor const by = row_major_factor<X>(largest_of_group<width>(largest));
  item_codes<width> const codes = codes_of(x, by);
  auto const top_k = static_cast<std::uint32_t>(p.gather.top_k);  // narrow-ok: few
  for (std::uint32_t k = 0; k < top_k; ++k) {
    std::uint32_t const slot = (at.exists ? at.row : 0) * top_k + k;
    int const row = in_warp ? __shfl_sync(~0U, own_row, static_cast<int>(slot))  // narrow-ok: few
                            : sorted.row[slot];
    if (row < 0 || !at.exists) continue;
    auto const to_row = static_cast<std::uint32_t>(row);  // narrow-ok: not negative
    store_codes(to, to_row, at.index, codes);
    if (threadIdx.x % lanes != 0) continue;
    to.scales[std::uint64_t{to_row} * to.scale_step +
              std::uint64_t{at.index / lanes} * to.group_step] = __uint_as_float(by.scale);
  }
}

}  // namespace

kernel<plan_gather_parameters> plan_gather_kernel(dtype x) {
  return {
      "plan_gather_small_batch",
      x == dtype::bf16 ? plan_gather_small_batch<dtype::bf16> : plan_gather_small_batch<dtype::f16>,
      true};
}

}  // namespace moe64::cuda
