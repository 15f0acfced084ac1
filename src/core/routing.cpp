#include "moe64/routing.hpp"

#include "core/arena.hpp"
#include "core/fail.hpp"

namespace moe64 {
namespace {

routing_plan cut(arena& memory, index_t tokens, index_t top_k, index_t experts) {
  if (tokens < 0 || top_k < 0 || experts < 0) {
    fail(errc::invalid_argument, "[plan] tokens {}, top_k {}, experts {}: none may be negative",
         tokens, top_k, experts);
  }
  index_t const slots = checked_mul(tokens, top_k);
  routing_plan plan;
  plan.tokens = tokens;
  plan.top_k = top_k;
  plan.experts = experts;
  plan.expert_begin = memory.take(dtype::int64, {checked_add(experts, 1)});
  plan.row_to_slot = memory.take(dtype::int64, {slots});
  plan.slot_to_row = memory.take(dtype::int64, {slots});
  plan.slot_weight = memory.take(dtype::f32, {slots});
  plan.status = memory.take(dtype::int64, {plan_status::count});
  return plan;
}

}  // namespace

index_t plan_bytes(index_t tokens, index_t top_k, index_t experts) {
  arena measure{device::cpu()};
  static_cast<void>(cut(measure, tokens, top_k, experts));
  return measure.bytes();
}

routing_plan bind_plan(workspace memory, index_t tokens, index_t top_k, index_t experts) {
  check_workspace("bind_plan", "memory", memory, plan_bytes(tokens, top_k, experts), memory.device);
  arena pieces{memory, memory.device};
  return cut(pieces, tokens, top_k, experts);
}

}  // namespace moe64
