// Slots without an expert on the GPU: routing tables that made other libraries read rows that do
// not exist. Each goes through plan, gather, combine and a whole layer; a slot that is no expert
// must be as good as absent.
#include "support/layer_fixture.hpp"
#include "support/routing.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_memory;
using test::target;
using test::test_tensor;

constexpr index_t experts = 4;

struct table {
  std::string name;
  index_t tokens, top_k;
  std::vector<index_t> ids;
};

std::vector<table> tables() {
  constexpr index_t lowest = std::numeric_limits<std::int32_t>::min();
  return {
      {"one_missing_choice_per_token", 4, 2, {0, -1, 1, 2, -1, 3, 2, -1}},  // as reported
      {"missing_first", 4, 2, {-1, 0, -1, 1, -1, 2, -1, 3}},
      {"missing_last", 4, 2, {0, -1, 1, -1, 2, -1, 3, -1}},
      {"a_token_without_any", 3, 2, {0, 1, -1, -1, 2, 3}},
      {"only_the_last_slot", 3, 2, {-1, -1, -1, -1, -1, 3}},
      {"only_the_first_slot", 3, 2, {0, -1, -1, -1, -1, -1}},
      {"none_at_all", 3, 2, {-1, -1, -1, -1, -1, -1}},
      {"one_past_the_last_expert", 4, 2, {0, 4, 4, 2, 1, 4, 4, 4}},
      {"both_kinds_of_sentinel", 4, 2, {-1, 4, 0, -1, 4, 3, -1, -1}},
      {"the_same_expert_twice", 3, 2, {1, 1, 2, 2, -1, 2}},
      {"one_expert_takes_all", 4, 2, {2, 2, 2, 2, 2, -1, 2, 2}},
      {"more_choices_than_experts", 2, 6, {0, 1, 2, 3, -1, -1, 3, 3, 0, 4, -1, 1}},
      {"numbers_that_are_no_expert", 3, 2, {5, 0, lowest, 1, -2, 2147483647}},
  };
}

bool is_expert(index_t id) { return id >= 0 && id < experts; }

class sentinels : public testing::TestWithParam<table> {
 protected:
  /// The same routing with -1 wherever there is no expert.
  static std::vector<index_t> clean() {
    std::vector<index_t> ids = GetParam().ids;
    for (index_t& id : ids) id = is_expert(id) ? id : -1;
    return ids;
  }
};

TEST_P(sentinels, plan_gather_and_combine) {
  table const& t = GetParam();
  index_t const slots = t.tokens * t.top_k;
  constexpr index_t hidden = 24;
  for (dtype const id_type : {dtype::int32, dtype::int64}) {
    test_tensor ids(id_type, {t.tokens, t.top_k});
    ids.fill([&](index_t token, index_t k, index_t) {
      return static_cast<double>(t.ids[static_cast<std::size_t>(token * t.top_k + k)]);
    });
    auto const expected = test::make_plan({t.tokens, t.top_k, experts, clean()});
    test_tensor const memory = test::make_workspace(plan_bytes(t.tokens, t.top_k, experts));
    test_tensor const scratch =
        test::make_workspace(plan_scratch_bytes(t.tokens, t.top_k, experts, target().device));
    plan_args args;
    args.expert_ids = ids;
    args.experts_total = experts;
    args.plan = bind_plan(memory.as_workspace(), t.tokens, t.top_k, experts);
    args.scratch = scratch.as_workspace();
    plan(args, target());
    EXPECT_EQ(test::bits_of(args.plan.expert_begin), test::bits_of(expected.plan.expert_begin));
    EXPECT_EQ(test::bits_of(args.plan.slot_to_row), test::bits_of(expected.plan.slot_to_row));
    auto const status = test::bits_of(args.plan.status);
    EXPECT_EQ(static_cast<index_t>(status[plan_status::kept] + status[plan_status::skipped] +
                                   status[plan_status::invalid]),
              slots);
    EXPECT_EQ(static_cast<index_t>(status[plan_status::kept]), expected.live());

    // A token comes back as often as it has experts.
    test_tensor x(dtype::f32, {t.tokens, hidden});
    x.fill_integers(1, -9, 9);
    test_tensor const rows(dtype::f32, {slots, hidden}), y(dtype::f32, {t.tokens, hidden});
    gather({.x = x, .plan = args.plan, .rows = rows}, target());
    combine({.rows = quantized_view::plain(rows), .plan = args.plan, .y = y}, target());
    for (index_t token = 0; token < t.tokens; ++token) {
      double times = 0.0;
      for (index_t k = 0; k < t.top_k; ++k) {
        times += is_expert(t.ids[static_cast<std::size_t>(token * t.top_k + k)]) ? 1.0 : 0.0;
      }
      for (index_t c = 0; c < hidden; ++c) {
        EXPECT_EQ(y.get(token, c), times * x.get(token, c)) << "token " << token;
      }
    }
  }
}

TEST_P(sentinels, whole_layer) {
  table const& t = GetParam();
  for (weight_format const weight : {weight_format::bf16, weight_format::e4m3}) {
    layer_case c;
    c.hidden = 40;
    c.inter = 24;
    c.top_k = t.top_k;
    c.weight = weight;
    if (weight == weight_format::e4m3) c.scale = granularity::block(16, 16);
    c.io = dtype::bf16;
    c.route(t.tokens, experts);
    c.ids = t.ids;
    layer_memory const found(c);
    found.run_forward();
    found.run_backward();
    c.ids = clean();
    layer_memory const wanted(c);
    wanted.run_forward();
    wanted.run_backward();
    EXPECT_EQ(found.result().difference(wanted.result()), "");
    EXPECT_EQ(oracle_difference(c, wanted), "");
  }
}

INSTANTIATE_TEST_SUITE_P(tables, sentinels, testing::ValuesIn(tables()),
                         [](auto const& given) { return given.param.name; });

TEST(sentinel_ranks, a_rank_without_a_single_slot) {
  layer_case c;
  c.hidden = 40;
  c.inter = 24;
  c.top_k = 2;
  c.io = dtype::bf16;
  c.bias = true;
  c.lora_gate_up = 2;
  c.route(50, 8);
  c.first_expert = 6;
  c.stored = 2;
  for (index_t& id : c.ids) id = id < 0 ? id : id % 6;  // all belong to other ranks
  layer_memory const memory(c);
  memory.run_forward();
  memory.run_backward();
  for (auto const& [name, codes] : memory.result().bits) {
    EXPECT_EQ(codes, std::vector<std::uint64_t>(codes.size(), 0)) << name;
  }
}

}  // namespace
}  // namespace moe64
