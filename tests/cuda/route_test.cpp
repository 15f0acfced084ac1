// route on a CUDA device: bit for bit what the CPU computes, whatever the options.
#include "core/exponential.hpp"
#include "moe64/cpu.hpp"
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace moe64 {
namespace {

using test::difference;
using test::random_source;
using test::test_tensor;

struct problem {
  index_t tokens, experts, top_k;
  route_options options;
  bool biased;
};

/// A random problem; every seventh logit is one of a few, so that there are ties.
problem random_problem(std::uint64_t seed) {
  random_source const random(seed);
  problem p{};
  p.options.expert_groups = index_t{1} << random.below(0, 4);
  index_t const size = random.between(1, 1, random.chance(2, 0.1) ? 300 : 40);
  p.experts = p.options.expert_groups * size;
  p.options.groups_kept = random.between(3, 1, p.options.expert_groups);
  p.top_k = random.between(4, 1, std::min<index_t>(size * p.options.groups_kept, 40));
  p.tokens = random.between(5, 1, 30);
  p.options.score = static_cast<scoring>(random.below(6, 3));
  p.options.group_by = static_cast<group_score>(random.below(7, 2));
  p.options.renormalize = random.chance(8, 0.5);
  p.options.scaling = random.chance(9, 0.5) ? 2.5F : 1.0F;
  p.biased = random.chance(10, 0.5);
  return p;
}

test_tensor random_logits(problem const& p, dtype type, std::uint64_t seed) {
  random_source const random(seed);
  test_tensor logits(type, {p.tokens, p.experts});
  logits.fill([&](index_t i, index_t j, index_t) {
    index_t const at = i * p.experts + j;
    if (random.chance(at, 0.14)) return static_cast<double>(random.between(at, -2, 2));
    if (random.chance(-at - 1, 0.002)) return std::numeric_limits<double>::quiet_NaN();
    if (random.chance(-at - 1, 0.004)) return -std::numeric_limits<double>::infinity();
    return random.uniform(at, -12.0, 12.0);
  });
  return logits;
}

TEST(cuda_route, random_problems_have_the_bits_of_the_cpu) {
  constexpr dtype types[] = {dtype::f32, dtype::bf16, dtype::f16};
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    problem const p = random_problem(seed);
    test_tensor const logits = random_logits(p, types[seed % 3], seed);
    test_tensor bias(dtype::f32, {p.experts});
    bias.fill_uniform(seed, -0.2, 0.2);
    dtype const id_type = seed % 2 == 0 ? dtype::int32 : dtype::int64;
    test_tensor const wanted_ids(id_type, {p.tokens, p.top_k}), ids(id_type, {p.tokens, p.top_k});
    test_tensor const wanted(dtype::f32, {p.tokens, p.top_k}),
        found(dtype::f32, {p.tokens, p.top_k});
    route_args args;
    args.logits = logits;
    if (p.biased) args.selection_bias = bias;
    args.options = p.options;
    args.expert_ids = wanted_ids;
    args.weights = wanted;
    route(args, cpu_stream());
    args.expert_ids = ids;
    args.weights = found;
    test::for_each_implementation(
        args,
        [&](route_args const& call) {
          route(call, test::target());
          ASSERT_EQ(ids.codes(), wanted_ids.codes());
          ASSERT_EQ(difference(found.numbers(), wanted.numbers()), "");
        },
        test::target());

    test_tensor d_weights(dtype::f32, {p.tokens, p.top_k});
    d_weights.fill_uniform(seed + 1);
    dtype const gradient_type = types[seed / 3 % 3];
    test_tensor const wanted_gradient(gradient_type, {p.tokens, p.experts});
    test_tensor const gradient(gradient_type, {p.tokens, p.experts});
    route_backward_args back;
    back.logits = logits;
    back.options = p.options;
    back.expert_ids = wanted_ids;
    back.d_weights = d_weights;
    back.d_logits = wanted_gradient;
    route_backward(back, cpu_stream());
    back.d_logits = gradient;
    test::for_each_implementation(
        back,
        [&](route_backward_args const& call) {
          route_backward(call, test::target());
          ASSERT_EQ(difference(gradient.numbers(), wanted_gradient.numbers()), "");
        },
        test::target());
    if (HasFatalFailure()) return;
  }
}

TEST(cuda_route, more_experts_than_scores_are_kept_of) {
  problem p{3, 5000, 9, {}, false};
  for (scoring const score : {scoring::softmax, scoring::softmax_of_selected, scoring::sigmoid}) {
    p.options.score = score;
    p.options.expert_groups = 8;
    p.options.groups_kept = 3;
    test_tensor const logits = random_logits(p, dtype::f32, 77);
    test_tensor const wanted_ids(dtype::int32, {3, 9}), ids(dtype::int32, {3, 9});
    test_tensor const wanted(dtype::f32, {3, 9}), found(dtype::f32, {3, 9});
    route_args args;
    args.logits = logits;
    args.options = p.options;
    args.expert_ids = wanted_ids;
    args.weights = wanted;
    route(args, cpu_stream());
    args.expert_ids = ids;
    args.weights = found;
    route(args, test::target());
    ASSERT_EQ(ids.codes(), wanted_ids.codes());
    ASSERT_EQ(difference(found.numbers(), wanted.numbers()), "");
  }
}

TEST(cuda_route_backward, bad_ids_contribute_nothing) {
  problem const p{5, 8, 3, {}, false};
  test_tensor const logits = random_logits(p, dtype::f32, 5);
  test_tensor ids(dtype::int32, {5, 3}), skipping(dtype::int32, {5, 3});
  ids.fill(
      [](index_t i, index_t j, index_t) { return j == 1 ? (i % 2 == 0 ? -2000000000 : 9) : j; });
  skipping.fill([](index_t, index_t j, index_t) { return j == 1 ? -1 : j; });
  test_tensor d_weights(dtype::f32, {5, 3});
  d_weights.fill_uniform(6);
  test_tensor const wanted(dtype::f32, {5, 8}), found(dtype::f32, {5, 8});
  route_backward_args args;
  args.logits = logits;
  args.d_weights = d_weights;
  args.expert_ids = skipping;
  args.d_logits = wanted;
  route_backward(args, cpu_stream());
  args.expert_ids = ids;
  args.d_logits = found;
  test::for_each_implementation(
      args,
      [&](route_backward_args const& call) {
        route_backward(call, test::target());
        ASSERT_EQ(difference(found.numbers(), wanted.numbers()), "");
      },
      test::target());
}

}  // namespace
}  // namespace moe64
