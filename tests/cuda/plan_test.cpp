// plan on a CUDA device: sizes around the edges of its kernels, ids of every kind.
#include "cuda/kernels/plan/plan.hpp"

#include "moe64/cpu.hpp"
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::make_workspace;
using test::random_source;
using test::test_tensor;

/// The arrays of a plan, where the CPU can look at them.
struct planned {
  test_tensor memory;
  test_tensor scratch;
  routing_plan plan;

  template <class Device>
  planned(index_t tokens, index_t top_k, index_t experts, Device where)
      : memory(make_workspace(plan_bytes(tokens, top_k, experts))),
        scratch(make_workspace(plan_scratch_bytes(tokens, top_k, experts, where))),
        plan(bind_plan(memory.as_workspace(), tokens, top_k, experts)) {}

  [[nodiscard]] index_t at(tensor_view const& list, index_t i) const {
    return static_cast<std::int64_t const*>(list.data)[i];
  }
  [[nodiscard]] float weight(index_t slot) const {
    return static_cast<float const*>(plan.slot_weight.data)[slot];
  }
};

/// Where two plans first differ; empty when they do not.
std::string plan_difference(planned const& found, planned const& wanted) {
  auto const compare = [&](char const* what, tensor_view const& a, tensor_view const& b,
                           index_t count) -> std::string {
    for (index_t i = 0; i < count; ++i) {
      if (found.at(a, i) == wanted.at(b, i)) continue;
      return std::string(what) + "[" + std::to_string(i) + "] is " +
             std::to_string(found.at(a, i)) + ", not " + std::to_string(wanted.at(b, i));
    }
    return "";
  };
  routing_plan const& a = found.plan;
  routing_plan const& b = wanted.plan;
  std::string text = compare("expert_begin", a.expert_begin, b.expert_begin, b.experts + 1);
  if (text.empty()) text = compare("status", a.status, b.status, plan_status::count);
  if (text.empty()) text = compare("slot_to_row", a.slot_to_row, b.slot_to_row, b.slots());
  if (text.empty()) {
    text =
        compare("row_to_slot", a.row_to_slot, b.row_to_slot, wanted.at(b.expert_begin, b.experts));
  }
  for (index_t slot = 0; text.empty() && slot < b.slots(); ++slot) {
    if (found.weight(slot) != wanted.weight(slot)) text = "slot_weight " + std::to_string(slot);
  }
  return text;
}

struct problem {
  index_t tokens, top_k, experts;
  index_t experts_total = -1;  ///< -1: experts
  index_t first_expert = 0;
  index_t capacity = -1;

  [[nodiscard]] index_t slots() const { return tokens * top_k; }
  [[nodiscard]] index_t total() const { return experts_total < 0 ? experts : experts_total; }
};

plan_args call_of(problem const& p, tensor_view const& ids, planned const& out) {
  plan_args args;
  args.expert_ids = ids;
  args.experts_total = p.total();
  args.first_expert = p.first_expert;
  args.capacity = p.capacity;
  args.plan = out.plan;
  args.scratch = out.scratch.as_workspace();
  return args;
}

/// The plan of every implementation is that of the CPU.
void expect_as_on_cpu(problem const& p, plan_args args) {
  SCOPED_TRACE("tokens " + std::to_string(p.tokens) + " top_k " + std::to_string(p.top_k) +
               " experts " + std::to_string(p.experts) + " capacity " + std::to_string(p.capacity));
  planned const wanted(p.tokens, p.top_k, p.experts, device::cpu());
  args.plan = wanted.plan;
  args.scratch = wanted.scratch.as_workspace();
  plan(args, cpu_stream());
  planned const found(p.tokens, p.top_k, p.experts, test::target().device);
  args.plan = found.plan;
  args.scratch = found.scratch.as_workspace();
  test::for_each_implementation(
      args,
      [&](plan_args const& call) {
        if (call.implementation == "reference" && p.slots() * p.experts > (index_t{1} << 28))
          return;
        plan(call, test::target());
        ASSERT_EQ(plan_difference(found, wanted), "");
      },
      test::target());
}

/// Ids of all experts, those of other ranks too, and about a fifth sentinels.
test_tensor random_id_tensor(problem const& p, dtype type, std::uint64_t seed) {
  random_source const random(seed);
  test_tensor ids(type, {p.tokens, p.top_k});
  ids.fill([&](index_t token, index_t k, index_t) {
    index_t const slot = token * p.top_k + k;
    bool const sentinel = random.chance(slot, 0.2) || p.total() == 0;
    if (sentinel) return random.chance(-1 - slot, 0.5) ? -1.0 : static_cast<double>(p.total());
    return static_cast<double>(random.below(slot, p.total()));
  });
  return ids;
}

TEST(cuda_plan, cuts_cover_all_slots_at_any_size) {
  for (index_t const experts : {0, 1, 255, 256, 2048, 65536, 1 << 30}) {
    for (index_t const slots : {index_t{0}, index_t{1}, index_t{511}, index_t{512}, index_t{513},
                                index_t{1} << 20, (index_t{1} << 31) + 1, index_t{1} << 40}) {
      cuda::plan_cut const cut = cuda::cut_slots(slots, experts);
      ASSERT_GE(cut.chunks, 1);
      ASSERT_LE(cut.chunks, 528);
      ASSERT_GE(cut.chunks * cut.chunk_slots, slots);
      ASSERT_LT((cut.chunks - 1) * cut.chunk_slots, std::max<index_t>(slots, 1));
      ASSERT_EQ(cut.chunk_slots % cuda::plan_cut::round_slots, 0);
    }
  }
}

TEST(cuda_plan, slots_around_the_edges_of_rounds_chunks_and_blocks) {
  std::uint64_t seed = 1;
  for (index_t const tokens :
       {1, 31, 32, 33, 511, 512, 513, 1023, 1025, 2047, 2049, 4095, 4096, 4097, 20000, 270337}) {
    for (problem const& p : {problem{tokens, 1, 7}, problem{tokens, 1, 256, 300, 20, 9}}) {
      expect_as_on_cpu(
          p, call_of(p, random_id_tensor(p, dtype::int32, ++seed), {0, 0, 0, device::cpu()}));
    }
  }
}

TEST(cuda_plan, experts_around_the_edges_of_tiles) {
  std::uint64_t seed = 100;
  for (index_t const experts :
       {1, 2, 31, 33, 255, 257, 1023, 1024, 1025, 2047, 2048, 2049, 4097, 65535, 65536}) {
    for (index_t const tokens : {1, 150, 700}) {
      problem const p{tokens, 8, experts};
      expect_as_on_cpu(
          p, call_of(p, random_id_tensor(p, dtype::int64, ++seed), {0, 0, 0, device::cpu()}));
    }
  }
}

TEST(cuda_plan, capacities_and_expert_ranges) {
  std::uint64_t seed = 200;
  for (index_t const capacity : {0, 1, 5, 64}) {
    for (index_t const first : {0, 3, 96}) {
      for (index_t const tokens : {100, 1500}) {
        problem const p{tokens, 6, 32, 128, first, capacity};
        expect_as_on_cpu(
            p, call_of(p, random_id_tensor(p, dtype::int32, ++seed), {0, 0, 0, device::cpu()}));
      }
    }
  }
}

TEST(cuda_plan, nothing_and_everything) {
  for (problem const& p : {problem{0, 8, 16}, problem{5, 0, 16}, problem{0, 0, 0},
                           problem{40, 4, 0, 0}, problem{40, 4, 0, 16, 7}}) {
    expect_as_on_cpu(p, call_of(p, random_id_tensor(p, dtype::int32, 3), {0, 0, 0, device::cpu()}));
  }
  for (index_t const tokens : {300, 3000}) {
    problem const p{tokens, 8, 64};
    test_tensor same(dtype::int32, {tokens, 8}), none(dtype::int32, {tokens, 8});
    same.fill([](index_t, index_t, index_t) { return 63; });
    none.fill([](index_t i, index_t j, index_t) { return (i + j) % 2 == 0 ? -1 : 64; });
    expect_as_on_cpu(p, call_of(p, same, {0, 0, 0, device::cpu()}));
    expect_as_on_cpu(p, call_of(p, none, {0, 0, 0, device::cpu()}));
  }
}

TEST(cuda_plan, masks) {
  random_source const random(9);
  for (index_t const tokens : {1, 40, 900}) {
    problem const p{tokens, 24, 24};
    test_tensor mask(dtype::uint8, {tokens, 24}, {31, 1}), weights(dtype::f16, {tokens, 24});
    mask.fill([&](index_t i, index_t j, index_t) { return random.chance(i * 24 + j, 0.3); });
    weights.fill_uniform(4);
    plan_args args = call_of(p, {}, {0, 0, 0, device::cpu()});
    args.expert_mask = mask;
    args.weights = weights;
    expect_as_on_cpu(p, args);
  }
}

TEST(cuda_plan, weights_of_every_type_and_strided_operands) {
  for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
    for (index_t const tokens : {77, 900}) {
      problem const p{tokens, 6, 16};
      test_tensor weights(type, {tokens, 6}, {1, tokens + 3});
      weights.fill_uniform(8);
      test_tensor ids(dtype::int64, {tokens, 6}, {13, 2});
      random_source const random(5);
      ids.fill([&](index_t i, index_t j, index_t) { return random.between(i * 6 + j, -1, 16); });
      plan_args args = call_of(p, ids, {0, 0, 0, device::cpu()});
      args.weights = weights;
      expect_as_on_cpu(p, args);
    }
  }
}

TEST(cuda_plan, bad_ids_are_counted_and_get_no_row) {
  index_t const least = std::numeric_limits<std::int32_t>::min();
  for (index_t const tokens : {20, 2500}) {
    problem const p{tokens, 4, 16, 32, 8};
    for (index_t const bad : {index_t{-2}, index_t{33}, least, index_t{1} << 30}) {
      SCOPED_TRACE(bad);
      random_source const random(static_cast<std::uint64_t>(tokens));
      test_tensor ids = random_id_tensor(p, dtype::int32, 6);
      test_tensor skipping = random_id_tensor(p, dtype::int32, 6);
      index_t count = 0, first = -1;
      for (index_t slot = p.slots() - 1; slot > p.slots() / 3; --slot) {
        if (!random.chance(slot, 0.1)) continue;
        ids.set_code(static_cast<std::uint32_t>(bad), slot / 4, slot % 4);
        skipping.set_code(~std::uint32_t{0}, slot / 4, slot % 4);
        ++count;
        first = slot;
      }
      planned wanted(p.tokens, 4, 16, device::cpu());
      plan(call_of(p, skipping, wanted), cpu_stream());
      auto* const status = static_cast<std::int64_t*>(wanted.plan.status.data);
      status[plan_status::skipped] -= count;
      status[plan_status::invalid] = count;
      status[plan_status::first_invalid] = first;
      planned const found(p.tokens, 4, 16, test::target().device);
      test::for_each_implementation(
          call_of(p, ids, found),
          [&](plan_args const& args) {
            plan(args, test::target());
            ASSERT_EQ(plan_difference(found, wanted), "");
          },
          test::target());
    }
  }
}

}  // namespace
}  // namespace moe64
