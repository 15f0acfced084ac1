// Routing with each score computed once gives the bits of the reference, by any number of threads.
#include "moe64/cpu.hpp"
#include "moe64/explain.hpp"
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::random_source;
using test::test_tensor;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Logits on a coarse grid, so that ties are common, with zeros of both signs and, now and then,
/// what is not finite.
test_tensor coarse_logits(dtype type, index_t tokens, index_t experts, std::uint64_t seed) {
  random_source const random(seed);
  test_tensor logits(type, {tokens, experts});
  logits.fill([&](index_t t, index_t e, index_t) {
    index_t const i = t * experts + e;
    if (t % 4 == 3 && random.chance(2 * i, 0.1)) {
      double const odd[] = {nan, infinity, -infinity};
      return odd[random.below(2 * i + 1, 3)];
    }
    double const value = static_cast<double>(random.below(2 * i, 17) - 8) / 4.0;
    return value == 0.0 && random.chance(2 * i + 1, 0.5) ? -0.0 : value;
  });
  return logits;
}

/// Bits of every element; all NaN are one, because C++ leaves open which of two a sum passes on.
std::vector<std::uint64_t> bits_of(test_tensor const& tensor) {
  std::vector<std::uint64_t> result;
  for (double const value : tensor.numbers()) {
    result.push_back(std::bit_cast<std::uint64_t>(std::isnan(value) ? nan : value));
  }
  return result;
}

struct routing_problem {
  index_t tokens, experts, top_k;
  route_options options;
};

std::string to_string(routing_problem const& p) {
  return "tokens " + std::to_string(p.tokens) + " experts " + std::to_string(p.experts) +
         " top_k " + std::to_string(p.top_k) + " scoring " +
         std::to_string(static_cast<int>(p.options.score)) + " groups " +
         std::to_string(p.options.groups_kept) + "/" + std::to_string(p.options.expert_groups);
}

routing_problem random_problem(index_t i) {
  random_source const random(static_cast<std::uint64_t>(i) + 7);
  index_t const groups = random.below(0, 2) == 0 ? 1 : 1 + random.below(1, 8);
  index_t const size = 1 + random.below(2, i % 10 == 0 ? 200 : 20);
  index_t const kept = 1 + random.below(3, groups);
  routing_problem p{1 + random.below(4, 70), groups * size, 1 + random.below(5, kept * size), {}};
  p.options = {static_cast<scoring>(random.below(6, 3)),
               random.chance(7, 0.5),
               2.5F,
               groups,
               kept,
               random.chance(8, 0.5) ? group_score::max : group_score::top2_sum};
  return p;
}

TEST(route_scored, ids_and_weights_are_those_of_the_reference) {
  constexpr dtype types[] = {dtype::f32, dtype::bf16, dtype::f16};
  for (index_t i = 0; i < 300; ++i) {
    routing_problem const p = random_problem(i);
    SCOPED_TRACE(to_string(p));
    test_tensor const logits =
        coarse_logits(types[i % 3], p.tokens, p.experts, static_cast<std::uint64_t>(i));
    test_tensor bias(dtype::f32, {p.experts}, {2});
    bias.fill(
        [&](index_t e, index_t, index_t) { return static_cast<double>((e * 5 + i) % 3) / 4; });
    dtype const id_type = i % 2 == 0 ? dtype::int32 : dtype::int64;
    test_tensor const ids(id_type, {p.tokens, p.top_k}), weights(dtype::f32, {p.tokens, p.top_k});
    test_tensor const ids_too(id_type, {p.tokens, p.top_k});
    test_tensor const weights_too(dtype::f32, {p.tokens, p.top_k});
    tensor_view const chosen_bias = i % 5 < 2 ? bias.view() : tensor_view{};
    route({logits, chosen_bias, p.options, ids, weights, "reference"}, cpu_stream());
    cpu_pool pool(1 + i % 5);
    route({logits, chosen_bias, p.options, ids_too, weights_too, "scored_once"}, cpu_stream(&pool));
    ASSERT_EQ(ids.codes(), ids_too.codes());
    ASSERT_EQ(bits_of(weights), bits_of(weights_too));
  }
}

TEST(route_scored, gradients_are_those_of_the_reference) {
  constexpr dtype types[] = {dtype::f32, dtype::bf16, dtype::f16};
  for (index_t i = 0; i < 200; ++i) {
    routing_problem const p = random_problem(i);
    SCOPED_TRACE(to_string(p));
    test_tensor const logits =
        coarse_logits(types[i % 3], p.tokens, p.experts, static_cast<std::uint64_t>(i));
    test_tensor ids(dtype::int64, {p.tokens, p.top_k}), d_weights(dtype::f32, {p.tokens, p.top_k});
    ids.fill_integers(static_cast<std::uint64_t>(i), -1,
                      p.experts);  // sentinels and duplicates too
    d_weights.fill_uniform(static_cast<std::uint64_t>(i));
    dtype const out = types[i / 3 % 3];
    test_tensor const wanted(out, {p.tokens, p.experts}), found(out, {p.tokens, p.experts});
    route_backward({logits, p.options, ids, d_weights, wanted, "reference"}, cpu_stream());
    cpu_pool pool(1 + i % 5);
    route_backward({logits, p.options, ids, d_weights, found, "scored_once"}, cpu_stream(&pool));
    ASSERT_EQ(bits_of(found), bits_of(wanted));
  }
}

TEST(route_scored, many_tokens_by_1_to_16_threads) {
  index_t const tokens = 2000, experts = 96, top_k = 6;
  test_tensor const logits = coarse_logits(dtype::f32, tokens, experts, 1);
  route_options const options{scoring::sigmoid, true, 1.0F, 8, 3, group_score::top2_sum};
  test_tensor const ids(dtype::int32, {tokens, top_k}), weights(dtype::f32, {tokens, top_k});
  route({logits, {}, options, ids, weights, "reference"}, cpu_stream());
  for (index_t threads = 1; threads <= 16; ++threads) {
    cpu_pool pool(threads);
    test_tensor const ids_too(dtype::int32, {tokens, top_k});
    test_tensor const weights_too(dtype::f32, {tokens, top_k});
    route({logits, {}, options, ids_too, weights_too}, cpu_stream(&pool));
    ASSERT_EQ(ids.codes(), ids_too.codes()) << threads;
    ASSERT_EQ(bits_of(weights), bits_of(weights_too)) << threads;
  }
}

TEST(route_scored, the_largest_and_the_first_that_is_refused) {
  route_options const options{scoring::softmax, true, 1.0F, 1, 1, {}};
  for (index_t const experts : {2047, 2048}) {
    test_tensor const logits = coarse_logits(dtype::f32, 2, experts, 3);
    test_tensor const ids(dtype::int32, {2, experts}), weights(dtype::f32, {2, experts});
    test_tensor const ids_too(dtype::int32, {2, 40}), weights_too(dtype::f32, {2, 40});
    route({logits, {}, options, ids, weights, "scored_once"}, cpu_stream());  // a full sort
    route({logits, {}, options, ids_too, weights_too, "reference"}, cpu_stream());
    for (index_t k = 0; k < 40; ++k) EXPECT_EQ(ids.get(0, k), ids_too.get(0, k)) << k;
  }
  test_tensor const logits = coarse_logits(dtype::f32, 1, 2049, 3);
  test_tensor const ids(dtype::int32, {1, 2}), weights(dtype::f32, {1, 2});
  EXPECT_MOE64_ERROR(route({logits, {}, options, ids, weights, "scored_once"}, cpu_stream()),
                     errc::unsupported, "scored_once", "2049", "2048");
  EXPECT_NO_THROW(route({logits, {}, options, ids, weights}, cpu_stream()));
}

TEST(route_backward, of_many_bad_ids_the_first_is_named_by_any_threads) {
  index_t const tokens = 30000, top_k = 4, experts = 3;
  test_tensor const logits(dtype::f32, {tokens, experts}), d_logits(dtype::f32, {tokens, experts});
  test_tensor const d_weights(dtype::f32, {tokens, top_k});
  test_tensor ids(dtype::int32, {tokens, top_k});
  ids.fill_integers(1, -1, 3);
  for (index_t const token : {29999, 20000, 15001, 15000, 7}) {
    ids.set(static_cast<double>(4 + token), token, 2);
    for (index_t const threads : {1, 2, 8}) {
      cpu_pool pool(threads);
      EXPECT_MOE64_ERROR(route_backward({logits, {}, ids, d_weights, d_logits}, cpu_stream(&pool)),
                         errc::invalid_expert, "holds " + std::to_string(4 + token) + " ",
                         "token " + std::to_string(token) + ",", "k 2");
    }
  }
}

}  // namespace
}  // namespace moe64
