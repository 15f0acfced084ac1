#include "cuda/plan.hpp"

#include "cuda/operations.hpp"
#include "cuda/runtime/launch.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace moe64::cuda {
namespace {

/// Arrays of the scratch, in int64.
struct scratch_sizes {
  index_t counts, totals, others;
};
scratch_sizes sizes_of(plan_cut const& cut, index_t experts) {
  return {checked_mul(cut.chunks, experts), experts, cut.chunks * plan_others::count};
}

plan_parameters parameters_of(plan_args const& args) {
  routing_plan const& plan = args.plan;
  plan_cut const cut = cut_slots(plan.slots(), plan.experts);
  scratch_sizes const sizes = sizes_of(cut, plan.experts);
  auto* const counts = static_cast<std::int64_t*>(args.scratch.data);
  return {.ids = args.expert_ids.present() ? args.expert_ids : args.expert_mask,
          .weights = args.weights,
          .plan = plan,
          .experts_total = args.experts_total,
          .first_expert = args.first_expert,
          .capacity = args.capacity,
          .cut = cut,
          .counts = counts,
          .totals = counts + sizes.counts,
          .others = counts + sizes.counts + sizes.totals};
}

/// Whether a tensor that is present has no gaps.
bool is_dense(tensor_view const& tensor) { return !tensor.present() || tensor.is_contiguous(); }

}  // namespace

support fits_one_launch(plan_args const& args) {
  routing_plan const& plan = args.plan;
  if (plan.slots() > plan_rounds_slots || plan.experts > plan_rounds_experts) {
    return support::no(fmt::format("{} slots and {} experts: it takes at most {} and {}",
                                   plan.slots(), plan.experts, plan_rounds_slots,
                                   plan_rounds_experts));
  }
  for (tensor_view const& tensor :
       {args.expert_ids, args.expert_mask, args.weights, plan.slot_to_row, plan.row_to_slot,
        plan.slot_weight, plan.expert_begin, plan.status}) {
    if (!is_dense(tensor)) {
      return support::no(fmt::format("an array {} has gaps", to_string(tensor)));
    }
  }
  return support::yes();
}

plan_rounds_parameters rounds_parameters_of(plan_args const& args) {
  routing_plan const& plan = args.plan;
  tensor_view const ids = args.expert_ids.present() ? args.expert_ids : args.expert_mask;
  index_t const most = args.capacity < 0 ? plan_rounds_slots : args.capacity;
  auto const longs = [](tensor_view const& t) { return static_cast<std::int64_t*>(t.data); };
  return {.ids = ids.data,
          .weights = args.weights.present() ? args.weights.data : nullptr,
          .slots = narrow<int>(plan.slots()),
          .experts = narrow<int>(plan.experts),
          .top_k = narrow<int>(std::min(plan.top_k, plan_rounds_slots)),
          .most_rows = narrow<int>(std::min(most, plan_rounds_slots)),
          .ids_type = ids.type,
          .weights_type = args.weights.type,
          .first_expert = args.first_expert,
          .slot_to_row = longs(plan.slot_to_row),
          .row_to_slot = longs(plan.row_to_slot),
          .slot_weight = static_cast<float*>(plan.slot_weight.data),
          .expert_begin = longs(plan.expert_begin),
          .experts_total = args.experts_total,
          .status = longs(plan.status)};
}

namespace {

void run_one_launch(plan_args const& args, stream where) {
  launcher on("plan", args, where);
  // Without slots there is still a plan to write.
  index_t const ctas = std::max<index_t>(ceil_div(args.plan.slots(), plan_rounds_step), 1);
  on.launch(plan_rounds_kernel(), {ctas, plan_threads, plan_rounds_shared(args.plan.experts)},
            rounds_parameters_of(args));
}

void run_chunks(plan_args const& args, stream where) {
  launcher on("plan", args, where);
  plan_parameters const parameters = parameters_of(args);
  index_t const chunks = parameters.cut.chunks;
  index_t const experts = args.plan.experts;
  index_t const warps = plan_threads / 32;
  on.launch(plan_count_kernel(), {chunks, plan_threads, plan_count_shared(experts)}, parameters);
  on.launch(plan_scan_kernel(), {on.ctas_for(ceil_div(experts, warps), 8), plan_threads},
            parameters);
  on.launch(plan_scatter_kernel(), {chunks, plan_threads, plan_scatter_shared(experts)},
            parameters);
}

void run_reference(plan_args const& args, stream where) {
  launcher on("plan", args, where);
  on.launch(plan_reference_kernel(), {1, plan_reference_threads}, parameters_of(args));
}

constexpr implementation<plan_args> planners[] = {
    {"one_launch", fits_one_launch, run_one_launch},
    {"chunks", any_call<plan_args>, run_chunks},
    {"reference", any_call<plan_args>, run_reference},
};

}  // namespace

implementation_list<plan_args> plan_list() { return planners; }

index_t plan_scratch_bytes(index_t tokens, index_t top_k, index_t experts) {
  scratch_sizes const sizes = sizes_of(cut_slots(checked_mul(tokens, top_k), experts), experts);
  index_t const all = checked_add(checked_add(sizes.counts, sizes.totals), sizes.others);
  return checked_mul(all, index_t{sizeof(std::int64_t)});
}

}  // namespace moe64::cuda
