// The plan of problems that are cut into chunks: any cut, by any threads, gives what the reference
// gives, bit for bit.
#include "moe64/cpu.hpp"
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::random_ids;
using test::random_source;
using test::test_tensor;

struct plan_case {
  index_t tokens, top_k, experts_total;
  index_t first_expert = 0;
  index_t experts = 0;
  index_t capacity = -1;
};

struct choices {
  tensor_view expert_ids = {};
  tensor_view expert_mask = {};
  tensor_view weights = {};
};

/// Memory of exactly the size that the queries say.
struct planned_memory {
  test_tensor memory, scratch;
  plan_args args;

  planned_memory(plan_case const& c, choices const& given) {
    memory = test::make_workspace(plan_bytes(c.tokens, c.top_k, c.experts));
    scratch = test::make_workspace(plan_scratch_bytes(c.tokens, c.top_k, c.experts, device::cpu()));
    args.expert_ids = given.expert_ids;
    args.expert_mask = given.expert_mask;
    args.weights = given.weights;
    args.experts_total = c.experts_total;
    args.first_expert = c.first_expert;
    args.capacity = c.capacity;
    args.plan = bind_plan(memory.as_workspace(), c.tokens, c.top_k, c.experts);
    args.scratch = scratch.as_workspace();
  }

  planned_memory& run(char const* implementation, cpu_executor* threads) {
    args.implementation = implementation;
    plan(args, cpu_stream(threads));
    return *this;
  }
};

void expect_same(tensor_view const& found, tensor_view const& wanted, index_t count) {
  for (index_t i = 0; i < count; ++i) {
    ASSERT_EQ(oracle::at(found, i), oracle::at(wanted, i)) << "at " << i;
  }
}

void expect_as_the_reference(plan_case const& c, choices const& given) {
  planned_memory wanted(c, given);
  wanted.run("reference", nullptr);
  routing_plan const& plan = wanted.args.plan;
  index_t const rows = static_cast<index_t>(oracle::at(plan.expert_begin, c.experts));
  for (index_t const threads : {1, 2, 3, 5, 16}) {
    SCOPED_TRACE(std::to_string(threads) + " threads");
    cpu_pool pool(threads);
    planned_memory found(c, given);
    found.run("parallel", &pool);
    expect_same(found.args.plan.expert_begin, plan.expert_begin, c.experts + 1);
    expect_same(found.args.plan.row_to_slot, plan.row_to_slot, rows);
    expect_same(found.args.plan.slot_to_row, plan.slot_to_row, plan.slots());
    expect_same(found.args.plan.slot_weight, plan.slot_weight, plan.slots());
    expect_same(found.args.plan.status, plan.status, plan_status::count);
    if (testing::Test::HasFatalFailure()) return;
  }
}

tensor_view ids_view(std::vector<index_t> const& ids, plan_case const& c) {
  return tensor_view::contiguous(ids.data(), dtype::int64, {c.tokens, c.top_k});
}

/// Chunks that plan cuts, as its scratch shows them: a counter for each expert and four more.
index_t chunks_of(plan_case const& c) {
  return plan_scratch_bytes(c.tokens, c.top_k, c.experts, device::cpu()) / 8 / (c.experts + 4);
}

TEST(plan_parallel, about_the_ends_of_chunks) {
  std::vector<index_t> chunks;
  for (index_t const tokens : {8191, 8192, 8193, 16383, 16384, 16385, 24575, 40000}) {
    plan_case const c{tokens, 1, 7, 0, 7};
    chunks.push_back(chunks_of(c));
    auto const ids = random_ids(1, tokens, 7);
    expect_as_the_reference(c, {.expert_ids = ids_view(ids, c)});
  }
  EXPECT_EQ(chunks, (std::vector<index_t>{1, 1, 1, 1, 2, 2, 2, 4}));
}

TEST(plan_parallel, random_problems_of_several_chunks) {
  random_source const random(2);
  for (index_t i = 0; i < 12; ++i) {
    index_t n = i * 16;
    plan_case c{5000 + random.below(n++, 8000), 1 + random.below(n++, 8),
                1 + random.below(n++, 300)};
    c.experts = c.experts_total;
    if (random.chance(n++, 0.5)) {
      c.first_expert = random.below(n++, c.experts_total);
      c.experts = random.below(n++, c.experts_total - c.first_expert + 1);
    }
    if (random.chance(n++, 0.5)) c.capacity = random.below(n++, 100);
    SCOPED_TRACE("case " + std::to_string(i) + ", chunks " + std::to_string(chunks_of(c)));
    auto const ids =
        random_ids(static_cast<std::uint64_t>(i), c.tokens * c.top_k, c.experts_total, 0.2);
    test_tensor weights(i % 3 == 0 ? dtype::bf16 : dtype::f16, {c.tokens, c.top_k});
    weights.fill_uniform(static_cast<std::uint64_t>(i));
    expect_as_the_reference(
        c, {.expert_ids = ids_view(ids, c), .weights = i % 2 == 0 ? weights : tensor_view{}});
  }
}

TEST(plan_parallel, a_capacity_that_one_chunk_fills_drops_all_of_the_next) {
  for (index_t const capacity : {0, 1, 8191, 8192, 8193, 20000, 32767, 32768}) {
    plan_case const c{8192, 4, 3, 0, 3, capacity};
    EXPECT_EQ(chunks_of(c), 4);
    std::vector<index_t> const ids(32768, 1);  // the same expert in every slot
    expect_as_the_reference(c, {.expert_ids = ids_view(ids, c)});
  }
}

TEST(plan_parallel, masks_of_several_chunks) {
  plan_case const c{3000, 12, 12, 2, 9, 500};
  test_tensor mask(dtype::uint8, {3000, 12}, {1, 3000});
  random_source const random(3);
  mask.fill(
      [&](index_t t, index_t e, index_t) { return random.chance(t * 12 + e, 0.3) ? 255 : 0; });
  EXPECT_GT(chunks_of(c), 2);
  expect_as_the_reference(c, {.expert_mask = mask});
}

TEST(plan_parallel, of_many_chunks_the_first_bad_id_is_named) {
  plan_case const c{20000, 4, 16, 0, 16};
  EXPECT_GT(chunks_of(c), 8);
  auto ids = random_ids(4, 80000, 16);
  for (index_t const bad : {79999, 79000, 50001, 20003, 20002, 5}) {
    ids[static_cast<std::size_t>(bad)] = bad % 2 == 0 ? 17 : std::numeric_limits<index_t>::min();
    planned_memory call(c, {.expert_ids = ids_view(ids, c)});
    auto const before = call.memory.bytes();
    for (index_t const threads : {1, 2, 8}) {
      cpu_pool pool(threads);
      for (char const* const implementation : {"parallel", "reference"}) {
        EXPECT_MOE64_ERROR(call.run(implementation, &pool), errc::invalid_expert,
                           "slot " + std::to_string(bad) + " ");
        EXPECT_EQ(call.memory.bytes(), before);
      }
    }
  }
}

TEST(plan_parallel, counters_stay_small_beside_the_plan) {
  for (index_t const experts : {0, 1, 64, 512, 65'536, 10'000'000}) {
    for (index_t const tokens : {0, 1, 2048, 1 << 20, 1 << 28}) {
      plan_case const c{tokens, 8, experts, 0, experts};
      index_t const bytes = plan_scratch_bytes(tokens, 8, experts, device::cpu());
      EXPECT_LE(bytes, plan_bytes(tokens, 8, experts) / 10 + (experts + 4) * 8);
      EXPECT_LE(chunks_of(c), 256);
    }
  }
  EXPECT_EQ(chunks_of({16, 8, 64, 0, 64}), 1);  // no task for a few tokens
}

TEST(plan_parallel, scratch_is_checked_like_any_operand) {
  plan_case const c{4, 2, 6, 0, 6};
  auto const ids = random_ids(1, 8, 6);
  planned_memory call(c, {.expert_ids = ids_view(ids, c)});
  plan_args args = call.args;
  --args.scratch.bytes;
  EXPECT_MOE64_ERROR(plan(args, cpu_stream()), errc::workspace_too_small, "[plan]", "scratch");
  args = call.args;
  args.scratch.data = args.plan.row_to_slot.data;
  EXPECT_MOE64_ERROR(plan(args, cpu_stream()), errc::invalid_argument, "scratch", "overlaps");
}

}  // namespace
}  // namespace moe64
