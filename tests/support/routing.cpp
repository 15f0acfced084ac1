#include "support/routing.hpp"

#include "support/random.hpp"

namespace moe64::test {
namespace {

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

test_tensor integers(std::vector<index_t> const& values, index_t length) {
  test_tensor result(dtype::int64, {length});
  for (index_t i = 0; i < std::ssize(values); ++i) {
    result.set_code(static_cast<std::uint64_t>(values[place(i)]), i);
  }
  return result;
}

}  // namespace

index_t test_plan::expert_of(index_t row) const {
  index_t expert = 0;
  while (rows.expert_begin[place(expert + 1)] <= row) ++expert;
  return expert;
}

test_plan make_plan(routing_spec const& spec) {
  test_plan result;
  index_t const slots = spec.tokens * spec.top_k;
  result.ids = test_tensor(dtype::int64, {spec.tokens, spec.top_k});
  for (index_t slot = 0; slot < slots; ++slot) {
    result.ids.set_code(static_cast<std::uint64_t>(spec.ids[place(slot)]), slot / spec.top_k,
                        slot % spec.top_k);
  }
  index_t const total = spec.experts_total < 0 ? spec.experts : spec.experts_total;
  result.rows = oracle::plan(result.ids, total, spec.first_expert, spec.experts, spec.capacity);
  result.expert_begin = integers(result.rows.expert_begin, spec.experts + 1);
  result.row_to_slot = integers(result.rows.row_to_slot, slots);
  result.slot_to_row = integers(result.rows.slot_to_row, slots);
  result.slot_weight = test_tensor(dtype::f32, {slots});
  result.slot_weight.fill([&](index_t slot, index_t, index_t) {
    if (result.rows.slot_to_row[place(slot)] < 0) return 0.0;
    return spec.weights.empty() ? 1.0 : spec.weights[place(slot)];
  });
  result.status = integers(
      {result.live(), result.rows.skipped, result.rows.elsewhere, result.rows.dropped, 0, -1},
      plan_status::count);
  result.plan = {spec.tokens,        spec.top_k,         spec.experts,       result.expert_begin,
                 result.row_to_slot, result.slot_to_row, result.slot_weight, result.status};
  return result;
}

std::vector<index_t> random_ids(std::uint64_t seed, index_t slots, index_t experts,
                                double sentinels) {
  random_source const random(seed);
  std::vector<index_t> result;
  for (index_t slot = 0; slot < slots; ++slot) {
    bool const skip = random.chance(2 * slot, sentinels) || experts == 0;
    index_t const draw = random.below(2 * slot + 1, skip ? 2 : experts);
    result.push_back(skip ? (draw == 0 ? index_t{-1} : experts) : draw);
  }
  return result;
}

std::vector<double> random_weights(std::uint64_t seed, index_t slots) {
  random_source const random(seed);
  std::vector<double> result;
  for (index_t slot = 0; slot < slots; ++slot) {
    result.push_back(double{static_cast<float>(random.uniform(slot))});
  }
  return result;
}

test_tensor make_expert_begin(std::vector<index_t> const& counts) {
  std::vector<index_t> begin{0};
  for (index_t const count : counts) begin.push_back(begin.back() + count);
  return integers(begin, std::ssize(begin));
}

}  // namespace moe64::test
