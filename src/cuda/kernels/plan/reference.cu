#include "cuda/kernels/plan/slots.cuh"

namespace moe64::cuda {
namespace {

/// Computes: the plan.
/// Grid: one CTA.
/// Threads: plan_reference_threads; each walks over all slots for each of its experts.
/// Shared memory: counters of slots without an expert here.
/// Limits: none.
__global__ void __launch_bounds__(plan_reference_threads) plan_reference(plan_parameters const p) {
  __shared__ cta_others others;
  index_t const slots = p.plan.slots();
  index_t const experts = p.plan.experts;
  auto const begin = [&](index_t e) -> std::int64_t& {
    return element<std::int64_t>(p.plan.expert_begin, e);
  };
  others.clear();
  for (index_t e = threadIdx.x; e < experts; e += blockDim.x) {
    std::int64_t count = 0;
    for (index_t slot = 0; slot < slots; ++slot) count += local_of(p, id_of(p, slot)) == e;
    begin(e + 1) = kept_of(p, count);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    begin(0) = 0;
    for (index_t e = 0; e < experts; ++e) begin(e + 1) += begin(e);
  }
  __syncthreads();
  for (index_t e = threadIdx.x; e < experts; e += blockDim.x) {
    index_t row = begin(e);
    for (index_t slot = 0; slot < slots; ++slot) {
      if (local_of(p, id_of(p, slot)) != e) continue;
      write_slot(p, slot, row < begin(e + 1) ? row++ : -1, weight_of(p, slot));
    }
  }
  for (index_t from = 0; from < slots; from += blockDim.x) {
    index_t const slot = from + threadIdx.x;
    others_seen seen;
    if (slot < slots && local_of(p, id_of(p, slot)) < 0) {
      seen.add(p.experts_total, id_of(p, slot), threadIdx.x);
      write_slot(p, slot, -1, 0.0F);
    }
    others.add(seen, from);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  auto* const status = static_cast<std::int64_t*>(p.plan.status.data);
  write_status({status, p.plan.slots(), begin(experts), p.plan.status.stride[0]}, others);
}

}  // namespace

kernel<plan_parameters> plan_reference_kernel() { return {"plan_reference", plan_reference}; }

}  // namespace moe64::cuda
