#include "core/arena.hpp"
#include "core/fail.hpp"
#include "ops/check.hpp"
#include "ops/dispatch.hpp"

namespace moe64 {

index_t plan_scratch_bytes(index_t tokens, index_t top_k, index_t experts, moe64::device where) {
  static_cast<void>(plan_bytes(tokens, top_k, experts));  // refuses extents that no plan can have
  return backend_of(where).plan_scratch_bytes(tokens, top_k, experts);
}

void plan(plan_args const& args, stream where) {
  checker const check("plan", where.device);
  check.plan(args.plan);
  index_t const tokens = args.plan.tokens;
  index_t const top_k = args.plan.top_k;
  check.at_least("experts_total", args.experts_total, 0);
  check.require(
      args.first_expert >= 0 && args.first_expert <= args.experts_total - args.plan.experts,
      fmt::format("experts [{}, {} + {}) of plan are not within experts_total ({})",
                  args.first_expert, args.first_expert, args.plan.experts, args.experts_total));
  check.at_least("capacity", args.capacity, -1);
  check.require(args.expert_ids.present() != args.expert_mask.present(),
                fmt::format("expert_ids {} and expert_mask {}: give exactly one",
                            to_string(args.expert_ids), to_string(args.expert_mask)));
  if (args.expert_ids.present()) {
    check.shape("expert_ids", args.expert_ids, {tokens, top_k});
    check.type("expert_ids", args.expert_ids, {dtype::int32, dtype::int64});
  } else {
    check.equal("top_k of plan", top_k, "experts_total", args.experts_total);
    check.shape("expert_mask", args.expert_mask, {tokens, args.experts_total});
    check.type("expert_mask", args.expert_mask, {dtype::uint8});
  }
  if (args.weights.present()) check.number("weights", args.weights, {tokens, top_k});
  index_t const scratch_bytes = plan_scratch_bytes(tokens, top_k, args.plan.experts, where.device);
  check_workspace("plan", "scratch", args.scratch, scratch_bytes, where.device);
  tensor_view const scratch = bytes_of({args.scratch.data, scratch_bytes, where.device});
  check.no_overlap("scratch", scratch, "expert_ids", args.expert_ids);
  check.no_overlap("scratch", scratch, "expert_mask", args.expert_mask);
  check.no_overlap("scratch", scratch, "weights", args.weights);
  check.no_overlap("scratch", scratch, args.plan);
  for (tensor_view const* output :
       {&args.plan.expert_begin, &args.plan.row_to_slot, &args.plan.slot_to_row,
        &args.plan.slot_weight, &args.plan.status}) {
    check.no_self_overlap("plan", *output);
    check.no_overlap("plan", *output, "expert_ids", args.expert_ids);
    check.no_overlap("plan", *output, "expert_mask", args.expert_mask);
    check.no_overlap("plan", *output, "weights", args.weights);
  }
  dispatch(args, where);
}

}  // namespace moe64
