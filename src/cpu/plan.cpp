#include "cpu/plan/plan.hpp"

#include "core/fail.hpp"
#include "cpu/operations.hpp"
#include "cpu/runtime/rows.hpp"

namespace moe64::cpu {
namespace {

/// Where a slot goes: a local expert, or one of these.
constexpr index_t skipped_slot = -1;
constexpr index_t elsewhere_slot = -2;
constexpr index_t invalid_slot = -3;

/// The expert id that slot (token, k) holds; a mask is a row of ids that are -1 where nothing is
/// chosen.
index_t id_at(plan_args const& args, index_t token, index_t k) {
  if (args.expert_ids.present()) return load_index(args.expert_ids, token, k);
  return as<std::uint8_t, 2>(args.expert_mask)(token, k) != 0 ? k : index_t{-1};
}

index_t destination(plan_args const& args, index_t id) {
  if (id == -1 || id == args.experts_total) return skipped_slot;
  if (id < 0 || id > args.experts_total) return invalid_slot;
  index_t const local = id - args.first_expert;
  return local >= 0 && local < args.plan.experts ? local : elsewhere_slot;
}

template <class Visit>
void for_each_slot(plan_args const& args, Visit const& visit) {
  for (index_t token = 0; token < args.plan.tokens; ++token) {
    for (index_t k = 0; k < args.plan.top_k; ++k) {
      visit(token, k, destination(args, id_at(args, token, k)));
    }
  }
}

/// Nothing may be written before every id is known to be legal.
void refuse_invalid(plan_args const& args) {
  index_t count = 0;
  index_t first_slot = -1;
  for_each_slot(args, [&](index_t token, index_t k, index_t expert) {
    if (expert == invalid_slot && count++ == 0) first_slot = token * args.plan.top_k + k;
  });
  if (count > 0) refuse_ids(args, count, first_slot);
}

void plan_reference(plan_args const& args, stream) {
  refuse_invalid(args);
  routing_plan const& plan = args.plan;
  auto const begin = as<std::int64_t, 1>(plan.expert_begin);
  auto const row_to_slot = as<std::int64_t, 1>(plan.row_to_slot);
  auto const slot_to_row = as<std::int64_t, 1>(plan.slot_to_row);
  auto const slot_weight = as<float, 1>(plan.slot_weight);
  auto const status = as<std::int64_t, 1>(plan.status);

  for (index_t e = 0; e <= plan.experts; ++e) begin(e) = 0;
  for (index_t s = 0; s < plan_status::count; ++s) status(s) = 0;
  status(plan_status::first_invalid) = -1;

  // Count the rows of each expert; a kept slot remembers its place among them.
  for_each_slot(args, [&](index_t token, index_t k, index_t expert) {
    index_t place = -1;
    if (expert == skipped_slot) {
      ++status(plan_status::skipped);
    } else if (expert == elsewhere_slot) {
      ++status(plan_status::elsewhere);
    } else if (args.capacity >= 0 && begin(expert + 1) >= args.capacity) {
      ++status(plan_status::dropped);
    } else {
      ++status(plan_status::kept);
      place = begin(expert + 1)++;
    }
    slot_to_row(token * plan.top_k + k) = place;
  });
  for (index_t e = 0; e < plan.experts; ++e) begin(e + 1) += begin(e);

  for_each_slot(args, [&](index_t token, index_t k, index_t expert) {
    index_t const slot = token * plan.top_k + k;
    index_t& row = slot_to_row(slot);
    slot_weight(slot) = 0.0F;
    if (row < 0) return;
    row += begin(expert);
    row_to_slot(row) = slot;
    slot_weight(slot) = args.weights.present() ? load_number(args.weights, token, k) : 1.0F;
  });
}

constexpr implementation<plan_args> planners[] = {
    {"parallel", any_call<plan_args>, plan_parallel},
    {"reference", any_call<plan_args>, plan_reference},
};

}  // namespace

void refuse_ids(plan_args const& args, index_t count, index_t first_slot) {
  index_t const token = first_slot / args.plan.top_k;
  index_t const k = first_slot % args.plan.top_k;
  fail(errc::invalid_expert,
       "[plan] expert_ids hold {} ids outside [0, {}) that are not -1 or {}: the first is {} at "
       "slot {} (token {}, k {})",
       count, args.experts_total, args.experts_total, id_at(args, token, k), first_slot, token, k);
}

implementation_list<plan_args> plan_list() { return planners; }

/// The reference sorts inside the plan's own arrays.
index_t plan_scratch_bytes(index_t tokens, index_t top_k, index_t experts) {
  return plan_parallel_scratch_bytes(tokens, top_k, experts);
}

}  // namespace moe64::cpu
