#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::for_each_implementation;
using test::random_ids;
using test::random_source;
using test::target;
using test::test_tensor;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct plan_case {
  index_t tokens, top_k, experts_total;
  index_t first_expert = 0;
  index_t experts = -1;  ///< -1: all
  index_t capacity = -1;

  [[nodiscard]] index_t served() const { return experts < 0 ? experts_total : experts; }
};

/// Memory and operands of one call.
struct plan_call {
  test_tensor memory, scratch;
  plan_args args;

  plan_call(plan_case const& c, tensor_view const& ids, tensor_view const& weights = {}) {
    memory = test::make_workspace(plan_bytes(c.tokens, c.top_k, c.served()));
    scratch =
        test::make_workspace(plan_scratch_bytes(c.tokens, c.top_k, c.served(), target().device));
    args.expert_ids = ids;
    args.weights = weights;
    args.experts_total = c.experts_total;
    args.first_expert = c.first_expert;
    args.capacity = c.capacity;
    args.plan = bind_plan(memory.as_workspace(), c.tokens, c.top_k, c.served());
    args.scratch = scratch.as_workspace();
  }
};

std::vector<index_t> integers(tensor_view const& tensor, index_t count) {
  auto const* data = static_cast<std::int64_t const*>(tensor.data);
  return {data, data + count};
}

void expect_plan(routing_plan const& plan, oracle::planned const& expected,
                 tensor_view const& weights) {
  index_t const slots = plan.slots();
  index_t const live = expected.expert_begin.back();
  EXPECT_EQ(integers(plan.expert_begin, plan.experts + 1), expected.expert_begin);
  EXPECT_EQ(integers(plan.row_to_slot, live), expected.row_to_slot);
  EXPECT_EQ(integers(plan.slot_to_row, slots), expected.slot_to_row);
  EXPECT_EQ(
      integers(plan.status, plan_status::count),
      (std::vector<index_t>{live, expected.skipped, expected.elsewhere, expected.dropped, 0, -1}));
  EXPECT_EQ(integers(plan.live_rows(), 1)[0], live);
  for (index_t slot = 0; slot < slots; ++slot) {
    double wanted = 0.0;
    if (expected.slot_to_row[static_cast<std::size_t>(slot)] >= 0) {
      wanted = weights.present() ? oracle::at(weights, slot / plan.top_k, slot % plan.top_k) : 1.0;
    }
    ASSERT_EQ(oracle::at(plan.slot_weight, slot), wanted) << "slot " << slot;
  }
}

test_tensor ids_tensor(dtype type, plan_case const& c, std::vector<index_t> const& ids,
                       std::vector<index_t> const& strides = {}) {
  test_tensor result = strides.empty() ? test_tensor(type, {c.tokens, c.top_k})
                                       : test_tensor(type, {c.tokens, c.top_k}, strides);
  result.fill([&](index_t t, index_t k, index_t) {
    return static_cast<double>(ids[static_cast<std::size_t>(t * c.top_k + k)]);
  });
  return result;
}

void expect_as_the_oracle(plan_case const& c, tensor_view const& ids,
                          tensor_view const& weights = {}) {
  SCOPED_TRACE("tokens " + std::to_string(c.tokens) + " top_k " + std::to_string(c.top_k) +
               " experts " + std::to_string(c.first_expert) + "+" + std::to_string(c.served()) +
               " of " + std::to_string(c.experts_total) + " capacity " +
               std::to_string(c.capacity));
  oracle::planned const expected =
      oracle::plan(ids, c.experts_total, c.first_expert, c.served(), c.capacity);
  plan_call const call(c, ids, weights);
  for_each_implementation(call.args, [&](plan_args const& args) {
    plan(args, target());
    expect_plan(args.plan, expected, weights);
  });
}

TEST(plan, random_ids_of_both_types) {
  random_source const random(1);
  for (index_t i = 0; i < 300; ++i) {
    index_t n = i * 16;
    plan_case c{random.below(n++, 40), random.below(n++, 6), 1 + random.below(n++, 20)};
    if (random.chance(n++, 0.5)) {
      c.first_expert = random.below(n++, c.experts_total);
      c.experts = random.below(n++, c.experts_total - c.first_expert + 1);
    }
    if (random.chance(n++, 0.5)) c.capacity = random.below(n++, 6);
    auto const numbers =
        random_ids(static_cast<std::uint64_t>(i), c.tokens * c.top_k, c.experts_total, 0.3);
    expect_as_the_oracle(c, ids_tensor(dtype::int32, c, numbers));
    expect_as_the_oracle(c, ids_tensor(dtype::int64, c, numbers));
  }
}

TEST(plan, strided_ids_and_weights_of_every_type) {
  plan_case const c{13, 3, 7};
  auto const numbers = random_ids(3, 39, 7);
  for (auto const& strides : {std::vector<index_t>{10, 2}, {1, 20}, {0, 1}}) {
    test_tensor const ids = ids_tensor(dtype::int64, c, numbers, strides);
    for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
      test_tensor weights(type, {13, 3}, {1, 17});
      weights.fill_uniform(5);
      expect_as_the_oracle(c, ids, weights);
    }
  }
}

TEST(plan, weights_of_slots_without_a_row_are_never_looked_at) {
  plan_case c{6, 2, 4};
  c.capacity = 1;
  c.first_expert = 1;
  c.experts = 2;
  std::vector<index_t> const numbers{-1, 4, 0, 1, 1, 2, 3, 2, -1, -1, 1, 0};
  test_tensor const ids = ids_tensor(dtype::int64, c, numbers);
  auto const rows = oracle::plan(ids, 4, 1, 2, 1);
  test_tensor weights(dtype::f32, {6, 2});
  weights.fill([&](index_t t, index_t k, index_t) {
    return rows.slot_to_row[static_cast<std::size_t>(t * 2 + k)] < 0 ? nan : 0.5;
  });
  EXPECT_EQ(rows.dropped, 3);
  EXPECT_EQ(rows.elsewhere, 3);
  EXPECT_EQ(rows.skipped, 4);
  expect_as_the_oracle(c, ids, weights);
}

TEST(plan, capacities_keep_the_first_slots) {
  plan_case c{8, 2, 3};
  auto const numbers = random_ids(9, 16, 3, 0.1);
  for (index_t const capacity : {0, 1, 2, 15, 16, 17}) {
    c.capacity = capacity;
    expect_as_the_oracle(c, ids_tensor(dtype::int64, c, numbers));
  }
  c.capacity = std::numeric_limits<index_t>::max();
  expect_as_the_oracle(c, ids_tensor(dtype::int64, c, numbers));
}

TEST(plan, nothing_to_do) {
  expect_as_the_oracle({0, 4, 8}, test_tensor(dtype::int64, {0, 4}));
  expect_as_the_oracle({5, 0, 8}, test_tensor(dtype::int64, {5, 0}));
  plan_case const c{5, 2, 8};
  expect_as_the_oracle(c, ids_tensor(dtype::int32, c, std::vector<index_t>(10, -1)));
  expect_as_the_oracle(c, ids_tensor(dtype::int32, c, std::vector<index_t>(10, 8)));
  plan_case const no_experts{5, 2, 0};
  expect_as_the_oracle(no_experts,
                       ids_tensor(dtype::int64, no_experts, {-1, 0, 0, -1, -1, -1, 0, 0, 0, -1}));
  plan_case elsewhere{5, 2, 8};
  elsewhere.experts = 0;
  elsewhere.first_expert = 8;
  expect_as_the_oracle(elsewhere, ids_tensor(dtype::int64, elsewhere, random_ids(4, 10, 8)));
}

TEST(plan, one_expert_takes_all_and_duplicates_have_a_row_each) {
  plan_case const c{100, 3, 5};
  expect_as_the_oracle(c, ids_tensor(dtype::int64, c, std::vector<index_t>(300, 3)));
}

TEST(plan, more_experts_than_any_table_of_fixed_size) {
  plan_case const c{50, 4, 5000};
  expect_as_the_oracle(c, ids_tensor(dtype::int32, c, random_ids(5, 200, 5000)));
}

TEST(plan, a_mask_is_a_row_of_chosen_experts) {
  random_source const random(3);
  for (plan_case c :
       {plan_case{7, 5, 5}, plan_case{7, 5, 5, 1, 3, 2}, plan_case{0, 5, 5}, plan_case{3, 1, 1}}) {
    test_tensor mask(dtype::uint8, {c.tokens, c.experts_total}, {c.experts_total + 3, 1});
    mask.fill([&](index_t t, index_t e, index_t) {
      return static_cast<double>(random.below(t * 5 + e, 3) * 100);  // any non-zero byte
    });
    std::vector<index_t> numbers;
    for (index_t t = 0; t < c.tokens; ++t) {
      for (index_t e = 0; e < c.experts_total; ++e) {
        numbers.push_back(mask.get(t, e) != 0.0 ? e : index_t{-1});
      }
    }
    test_tensor const ids = ids_tensor(dtype::int64, c, numbers);
    auto const expected =
        oracle::plan(ids, c.experts_total, c.first_expert, c.served(), c.capacity);
    plan_call call(c, {});
    call.args.expert_mask = mask;
    for_each_implementation(call.args, [&](plan_args const& args) {
      plan(args, target());
      expect_plan(args.plan, expected, {});
    });
  }
}

/// Ids that are neither an expert nor a sentinel, two of them in a call: the first is named.
struct bad_ids {
  static constexpr plan_case shape{4, 3, 6};
  std::vector<index_t> numbers = random_ids(1, 12, 6);
  test_tensor ids;

  bad_ids(index_t bad, dtype type) {
    numbers[7] = bad;
    numbers[10] = -9;
    ids = ids_tensor(type, shape, numbers);
  }
};

constexpr index_t bad_values[] = {-2, 7, 2147483647, -2147483648};

#ifndef MOE64_TEST_CUDA

TEST(plan, other_ids_are_refused_by_slot_and_value_and_nothing_is_written) {
  for (index_t const bad : bad_values) {
    for (dtype const type : {dtype::int32, dtype::int64}) {
      bad_ids const given(bad, type);
      plan_call const call(bad_ids::shape, given.ids);
      auto const before = call.memory.bytes();
      for_each_implementation(call.args, [&](plan_args const& args) {
        EXPECT_MOE64_ERROR(plan(args, target()), errc::invalid_expert, "[plan]",
                           "is " + std::to_string(bad) + " at slot 7", "token 2", "k 1");
        EXPECT_EQ(call.memory.bytes(), before);
      });
    }
  }
  // Past what a double or an int32 could tell.
  test_tensor ids(dtype::int64, {4, 3});
  ids.fill_integers(1, 0, 5).set_code(0x0000000100000003U, 3, 2);
  plan_call const call(bad_ids::shape, ids);
  EXPECT_MOE64_ERROR(plan(call.args, target()), errc::invalid_expert, "4294967299", "slot 11");
}

#else

TEST(plan, other_ids_are_counted_and_get_no_row) {
  for (index_t const bad : bad_values) {
    for (dtype const type : {dtype::int32, dtype::int64}) {
      bad_ids const given(bad, type);
      std::vector<index_t> skipped = given.numbers;
      skipped[7] = skipped[10] = -1;
      oracle::planned const expected =
          oracle::plan(ids_tensor(type, bad_ids::shape, skipped), 6, 0, 6, -1);
      plan_call const call(bad_ids::shape, given.ids);
      for_each_implementation(call.args, [&](plan_args const& args) {
        plan(args, target());
        EXPECT_EQ(integers(args.plan.expert_begin, 7), expected.expert_begin);
        EXPECT_EQ(integers(args.plan.slot_to_row, 12), expected.slot_to_row);
        EXPECT_EQ(
            integers(args.plan.status, plan_status::count),
            (std::vector<index_t>{expected.expert_begin.back(), expected.skipped - 2, 0, 0, 2, 7}));
        for (index_t const slot : {7, 10}) EXPECT_EQ(oracle::at(args.plan.slot_weight, slot), 0.0);
      });
    }
  }
}

#endif

TEST(plan, wrong_operands_are_refused) {
  plan_case const c{4, 2, 6};
  test_tensor const ids = ids_tensor(dtype::int64, c, random_ids(1, 8, 6));
  auto const refused = [&](errc code, auto const& change, auto... parts) {
    plan_call call(c, ids);
    change(call.args);
    auto const before = call.memory.bytes();
    EXPECT_MOE64_ERROR(plan(call.args, target()), code, "[plan]", parts...);
    EXPECT_EQ(call.memory.bytes(), before);
  };
  refused(
      errc::invalid_argument, [](plan_args& a) { a.expert_ids = {}; }, "exactly one");
  test_tensor const floats(dtype::f32, {4, 2});
  refused(
      errc::dtype_mismatch, [&](plan_args& a) { a.expert_ids = floats; }, "f32");
  test_tensor const short_ids(dtype::int64, {3, 2});
  refused(
      errc::shape_mismatch, [&](plan_args& a) { a.expert_ids = short_ids; }, "[3, 2]");
  test_tensor const wide_weights(dtype::f32, {4, 3});
  refused(
      errc::shape_mismatch, [&](plan_args& a) { a.weights = wide_weights; }, "weights");
  refused(
      errc::dtype_mismatch, [&](plan_args& a) { a.weights = ids; }, "weights", "int64");
  refused(
      errc::invalid_argument, [](plan_args& a) { a.experts_total = 5; }, "experts_total (5)");
  refused(
      errc::invalid_argument, [](plan_args& a) { a.first_expert = 1; }, "experts_total");
  refused(
      errc::invalid_argument, [](plan_args& a) { a.first_expert = -1; }, "-1");
  refused(
      errc::invalid_argument, [](plan_args& a) { a.capacity = -2; }, "capacity", "-2");
  refused(
      errc::unsupported, [](plan_args& a) { a.implementation = "magic"; }, "magic");
  test_tensor const mask(dtype::uint8, {4, 6});
  refused(
      errc::invalid_argument, [&](plan_args& a) { a.expert_mask = mask; }, "exactly one");
  refused(
      errc::shape_mismatch,
      [&](plan_args& a) {
        a.expert_ids = {};
        a.expert_mask = mask;
      },
      "top_k");
}

TEST(plan_bytes, is_exact_and_refuses_what_does_not_fit) {
  EXPECT_GT(plan_bytes(0, 0, 0), 0);
  test_tensor const memory = test::make_workspace(plan_bytes(3, 2, 4));
  routing_plan const p = bind_plan(memory.as_workspace(), 3, 2, 4);
  auto const* const end = static_cast<char const*>(p.status.data) + p.status.span_bytes();
  EXPECT_EQ(end, static_cast<char const*>(memory.view().data) + plan_bytes(3, 2, 4));
  workspace short_memory = memory.as_workspace();
  --short_memory.bytes;
  EXPECT_MOE64_ERROR(bind_plan(short_memory, 3, 2, 4), errc::workspace_too_small, "[bind_plan]");
  index_t const huge = index_t{1} << 62;
  EXPECT_MOE64_ERROR(plan_bytes(huge, 2, 4), errc::size_overflow);
  EXPECT_MOE64_ERROR(plan_bytes(huge, 1, 4), errc::size_overflow);
  EXPECT_MOE64_ERROR(plan_bytes(1, 1, std::numeric_limits<index_t>::max()), errc::size_overflow);
  EXPECT_MOE64_ERROR(plan_bytes(-1, 1, 4), errc::invalid_argument, "-1");
  EXPECT_MOE64_ERROR(plan_scratch_bytes(huge, 2, 4, target().device), errc::size_overflow);
}

}  // namespace
}  // namespace moe64
