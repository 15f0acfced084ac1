#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::difference;
using test::for_each_implementation;
using test::random_source;
using test::target;
using test::test_tensor;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

constexpr scoring every_scoring[] = {scoring::softmax, scoring::softmax_of_selected,
                                     scoring::sigmoid};

/// exp, sum of `experts` and quotient in f32: a few units in the last place plus one per addition.
double relative_bound(index_t experts) { return (8.0 + static_cast<double>(experts)) * 0x1p-24; }

std::vector<double> as_doubles(std::vector<index_t> const& ids) { return {ids.begin(), ids.end()}; }

void expect_as_the_oracle(tensor_view const& logits, tensor_view const& bias,
                          route_options const& options, index_t top_k,
                          dtype ids_type = dtype::int64) {
  SCOPED_TRACE("scoring " + std::to_string(static_cast<int>(options.score)) + " renormalize " +
               std::to_string(options.renormalize) + " groups " +
               std::to_string(options.groups_kept) + "/" + std::to_string(options.expert_groups) +
               " by " + std::to_string(static_cast<int>(options.group_by)) + " top_k " +
               std::to_string(top_k));
  oracle::routed const expected = oracle::route(logits, bias, options, top_k);
  test_tensor const ids(ids_type, {logits.extent[0], top_k});
  test_tensor const weights(dtype::f32, {logits.extent[0], top_k});
  for_each_implementation(
      route_args{logits, bias, options, ids, weights}, [&](route_args const& args) {
        route(args, target());
        EXPECT_EQ(difference(ids.numbers(), as_doubles(expected.ids)), "");
        std::vector<double> bound;
        for (double const weight : expected.weights) {
          bound.push_back(std::fabs(weight) * relative_bound(logits.extent[1]) + 0x1p-126);
        }
        EXPECT_EQ(difference(weights.numbers(), expected.weights, bound), "");
      });
}

/// Logits that differ within a token by uneven steps, so that scores and sums of two scores rank
/// alike in f32 and in double.
test_tensor distinct_logits(dtype type, index_t tokens, index_t experts, std::uint64_t seed) {
  random_source const random(seed);
  test_tensor logits(type, {tokens, experts});
  std::vector<double> ladder;
  for (index_t token = 0; token < tokens; ++token) {
    ladder.clear();
    for (index_t e = 0; e < experts; ++e)
      ladder.push_back(static_cast<double>(e * (e + 7)) / 128.0 - 2.0);
    for (index_t e = experts; e-- > 1;) {
      std::swap(ladder[static_cast<std::size_t>(e)],
                ladder[static_cast<std::size_t>(random.below(token * experts + e, e + 1))]);
    }
    for (index_t e = 0; e < experts; ++e) logits.set(ladder[static_cast<std::size_t>(e)], token, e);
  }
  return logits;
}

TEST(route, every_scoring_type_and_id_type) {
  for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
    test_tensor const logits = distinct_logits(type, 9, 24, 5);
    for (scoring const score : every_scoring) {
      for (bool const renormalize : {false, true}) {
        for (index_t const top_k : {1, 2, 5, 24}) {
          for (dtype const ids : {dtype::int32, dtype::int64}) {
            expect_as_the_oracle(logits, {}, {score, renormalize, 2.5F, 1, 1, {}}, top_k, ids);
          }
        }
      }
    }
  }
}

TEST(route, groups_are_kept_by_their_best_or_their_two_best) {
  test_tensor const logits = distinct_logits(dtype::f32, 20, 24, 6);
  for (scoring const score : every_scoring) {
    for (group_score const by : {group_score::max, group_score::top2_sum}) {
      for (index_t const groups : {1, 2, 3, 4, 6, 8, 12, 24}) {
        for (index_t kept = 1; kept <= groups; ++kept) {
          index_t const eligible = 24 / groups * kept;
          expect_as_the_oracle(logits, {}, {score, true, 1.0F, groups, kept, by},
                               std::min<index_t>(eligible, 4));
          expect_as_the_oracle(logits, {}, {score, false, 1.0F, groups, kept, by}, eligible);
        }
      }
    }
  }
}

TEST(route, a_group_of_one_strong_expert_beats_only_by_max) {
  // Group 0 holds the best expert, group 1 the best pair.
  test_tensor logits(dtype::f32, {1, 4});
  std::vector<double> const values{4.0, -9.0, 3.0, 2.0};
  logits.fill([&](index_t, index_t e, index_t) { return values[static_cast<std::size_t>(e)]; });
  test_tensor const ids(dtype::int64, {1, 1}), weights(dtype::f32, {1, 1});
  route_options options{scoring::softmax_of_selected, false, 1.0F, 2, 1, group_score::max};
  route({logits, {}, options, ids, weights}, target());
  EXPECT_EQ(ids.get(0, 0), 0.0);
  options.group_by = group_score::top2_sum;
  route({logits, {}, options, ids, weights}, target());
  EXPECT_EQ(ids.get(0, 0), 2.0);
}

TEST(route, the_selection_bias_chooses_but_does_not_weigh) {
  test_tensor const logits = distinct_logits(dtype::f32, 12, 16, 7);
  test_tensor bias(dtype::f32, {16});
  // Far apart, so that it decides alone.
  bias.fill([](index_t e, index_t, index_t) { return 1000.0 * static_cast<double>(e * 7 % 16); });
  for (scoring const score : every_scoring) {
    for (bool const renormalize : {false, true}) {
      expect_as_the_oracle(logits, bias, {score, renormalize, 1.0F, 1, 1, {}}, 3);
      expect_as_the_oracle(logits, bias, {score, renormalize, 1.0F, 4, 2, {}}, 3);
    }
  }
  test_tensor small(dtype::f32, {16}, {3});
  small.fill([](index_t e, index_t, index_t) { return e == 3 ? 0.5 : 0.0; });
  expect_as_the_oracle(logits, small, {scoring::sigmoid, true, 1.0F, 1, 1, {}}, 4);
}

TEST(route, softmax_of_selected_is_safe_when_the_bias_puts_a_small_logit_first) {
  test_tensor logits(dtype::f32, {1, 3}), bias(dtype::f32, {3});
  logits.fill([](index_t, index_t e, index_t) { return e == 1 ? 200.0 : 0.0; });
  bias.fill([](index_t e, index_t, index_t) { return e == 0 ? 1000.0 : 0.0; });
  expect_as_the_oracle(logits, bias, {scoring::softmax_of_selected, false, 1.0F, 1, 1, {}}, 2);
}

TEST(route, ties_go_to_the_lower_id) {
  test_tensor logits(dtype::f32, {3, 8});
  logits.fill([](index_t token, index_t e, index_t) {
    return token == 0 ? 1.0 : (token == 1 ? (e >= 5 ? 2.0 : 1.0) : static_cast<double>(e % 2));
  });
  for (scoring const score : every_scoring) {
    test_tensor const ids(dtype::int64, {3, 4}), weights(dtype::f32, {3, 4});
    route({logits, {}, {score, false, 1.0F, 1, 1, {}}, ids, weights}, target());
    EXPECT_EQ(ids.numbers(), (std::vector<double>{0, 1, 2, 3, 5, 6, 7, 0, 1, 3, 5, 7}));
    expect_as_the_oracle(logits, {}, {score, true, 1.0F, 4, 2, group_score::max}, 3);
    expect_as_the_oracle(logits, {}, {score, true, 1.0F, 4, 2, group_score::top2_sum}, 3);
  }
}

TEST(route, nan_is_chosen_last_and_ids_stay_legal) {
  test_tensor logits(dtype::f32, {4, 6});
  logits.fill([](index_t token, index_t e, index_t) {
    if (token == 3) return nan;
    return e <= token ? nan : static_cast<double>(e);
  });
  for (scoring const score : {scoring::softmax_of_selected, scoring::sigmoid}) {
    for (index_t const top_k : {1, 3, 6}) {
      expect_as_the_oracle(logits, {}, {score, false, 1.0F, 1, 1, {}}, top_k);
      expect_as_the_oracle(logits, {}, {score, true, 1.0F, 1, 1, {}}, top_k);
    }
    expect_as_the_oracle(logits, {}, {score, false, 1.0F, 3, 2, group_score::max}, 2);
    expect_as_the_oracle(logits, {}, {score, false, 1.0F, 3, 2, group_score::top2_sum}, 2);
  }
  // With softmax over all experts NaN is everywhere in its token.
  expect_as_the_oracle(logits, {}, {scoring::softmax, true, 1.0F, 1, 1, {}}, 4);
  logits.set(infinity, 0, 5);
  logits.set(-infinity, 1, 5);
  expect_as_the_oracle(logits, {}, {scoring::sigmoid, true, 1.0F, 1, 1, {}}, 4);
  expect_as_the_oracle(logits, {}, {scoring::softmax_of_selected, false, 1.0F, 1, 1, {}}, 4);
}

TEST(route, large_logits_do_not_overflow) {
  // Apart by less than what exp can tell from 0.
  test_tensor logits(dtype::f32, {2, 5});
  logits.fill([](index_t token, index_t e, index_t) {
    return (token == 0 ? -1000.0 : 1000.0) + 20.0 * static_cast<double>(e * 2 % 5);
  });
  for (scoring const score : every_scoring) {
    expect_as_the_oracle(logits, {}, {score, false, 1.0F, 1, 1, {}}, 3);
  }
}

TEST(route, strided_operands_and_no_tokens) {
  test_tensor logits(dtype::bf16, {6, 10}, {1, 8});
  logits.fill(
      [](index_t t, index_t e, index_t) { return static_cast<double>((7 * e + 3 * t) % 10); });
  test_tensor const ids(dtype::int32, {6, 3}, {5, 1}), weights(dtype::f32, {6, 3}, {1, 9});
  route_options const options{scoring::softmax, true, 1.0F, 1, 1, {}};
  route({logits, {}, options, ids, weights}, target());
  EXPECT_EQ(ids.numbers(), as_doubles(oracle::route(logits, {}, options, 3).ids));
  test_tensor const none(dtype::f32, {0, 10}), no_ids(dtype::int32, {0, 3}),
      no_weights(dtype::f32, {0, 3});
  EXPECT_NO_THROW(route({none, {}, options, no_ids, no_weights}, target()));
}

TEST(route, renormalised_weights_sum_to_the_scaling) {
  test_tensor const logits = distinct_logits(dtype::f32, 30, 32, 3);
  for (scoring const score : every_scoring) {
    test_tensor const ids(dtype::int64, {30, 6}), weights(dtype::f32, {30, 6});
    route({logits, {}, {score, true, 2.5F, 1, 1, {}}, ids, weights}, target());
    for (index_t token = 0; token < 30; ++token) {
      double sum = 0.0;
      for (index_t k = 0; k < 6; ++k) sum += weights.get(token, k);
      EXPECT_NEAR(sum, 2.5, 16 * 0x1p-24);
    }
  }
}

TEST(route, impossible_choices_are_refused) {
  test_tensor const logits = distinct_logits(dtype::f32, 2, 12, 1);
  test_tensor const ids(dtype::int64, {2, 5}), weights(dtype::f32, {2, 5});
  auto const call = [&](index_t groups, index_t kept) {
    route({logits, {}, {scoring::softmax, false, 1.0F, groups, kept, {}}, ids, weights}, target());
  };
  auto const before = ids.bytes();
  EXPECT_MOE64_ERROR(call(5, 1), errc::invalid_argument, "[route]", "12", "5");
  EXPECT_MOE64_ERROR(call(3, 1), errc::invalid_argument, "top_k (5)", "4");
  EXPECT_MOE64_ERROR(call(3, 4), errc::invalid_argument, "groups_kept (4)");
  EXPECT_MOE64_ERROR(call(3, 0), errc::invalid_argument, "groups_kept (0)");
  EXPECT_MOE64_ERROR(call(0, 0), errc::invalid_argument, "expert_groups");
  EXPECT_EQ(ids.bytes(), before);
}

// ---- backward -----------------------------------------------------------------------------------

void expect_gradient_as_the_oracle(tensor_view const& logits, route_options const& options,
                                   tensor_view const& ids, tensor_view const& d_weights,
                                   dtype out_type) {
  std::vector<double> const expected = oracle::route_backward(logits, options, ids, d_weights);
  test_tensor const d_logits(out_type, {logits.extent[0], logits.extent[1]});
  for_each_implementation(
      route_backward_args{logits, options, ids, d_weights, d_logits},
      [&](route_backward_args const& args) {
        route_backward(args, target());
        // Terms cancel, so the bound is absolute: |d_weights| <= 1 and scores <= 1, about
        // experts + 30 roundings, then the rounding of the output (8 bits at least).
        double const steps = static_cast<double>(logits.extent[1]) + 30.0;
        std::vector<double> bound;
        for (double const value : expected) {
          double const rounding =
              out_type == dtype::f32 ? 0.0 : std::fabs(value) * 0x1p-8 + 0x1p-24;
          bound.push_back(std::fabs(double{options.scaling}) * steps * 0x1p-23 + rounding);
        }
        EXPECT_EQ(difference(d_logits.numbers(), expected, bound), "")
            << "scoring " << static_cast<int>(options.score);
      });
}

TEST(route_backward, every_scoring_with_sentinels_and_duplicates) {
  for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
    test_tensor const logits = distinct_logits(type, 6, 12, 8);
    for (dtype const ids_type : {dtype::int32, dtype::int64}) {
      test_tensor ids(ids_type, {6, 3});
      ids.fill([](index_t token, index_t k, index_t) {
        if (token == 1) return k == 1 ? -1.0 : static_cast<double>(k);
        if (token == 2) return k == 0 ? 12.0 : static_cast<double>(k);
        if (token == 3) return 4.0;                   // the same expert three times
        if (token == 4) return k == 0 ? -1.0 : 12.0;  // none at all
        return static_cast<double>((token * 5 + k * 2) % 12);
      });
      test_tensor d_weights(dtype::f32, {6, 3});
      d_weights.fill_uniform(4);
      // What belongs to a sentinel must not be looked at.
      d_weights.set(nan, 1, 1);
      d_weights.set(nan, 4, 0);
      for (scoring const score : every_scoring) {
        for (bool const renormalize : {false, true}) {
          route_options const options{score, renormalize, 1.5F, 1, 1, {}};
          expect_gradient_as_the_oracle(logits, options, ids, d_weights, type);
        }
      }
    }
  }
}

TEST(route_backward, a_token_without_experts_has_no_gradient) {
  test_tensor const logits = distinct_logits(dtype::f32, 2, 4, 1);
  test_tensor ids(dtype::int64, {2, 2}), d_weights(dtype::f32, {2, 2});
  ids.fill([](index_t, index_t k, index_t) { return k == 0 ? -1.0 : 4.0; });
  for (scoring const score : every_scoring) {
    test_tensor const d_logits(dtype::f32, {2, 4});
    route_backward({logits, {score, true, 1.0F, 1, 1, {}}, ids, d_weights, d_logits}, target());
    for (double const value : d_logits.numbers()) EXPECT_EQ(value, 0.0);
  }
}

TEST(route_backward, other_ids_are_refused_before_anything_is_written) {
  test_tensor const logits = distinct_logits(dtype::f32, 3, 4, 1);
  test_tensor d_weights(dtype::f32, {3, 2});
  d_weights.fill_uniform(1);
  test_tensor const d_logits(dtype::f32, {3, 4});
  for (double const bad : {-2.0, 5.0, 1e9}) {
    test_tensor ids(dtype::int64, {3, 2});
    ids.fill_integers(1, 0, 3).set(bad, 2, 1);
    if constexpr (test::on_cuda) {
      route_backward({logits, {}, ids, d_weights, d_logits}, target());
      test_tensor const without(dtype::f32, {3, 4});
      ids.set(-1.0, 2, 1);
      route_backward({logits, {}, ids, d_weights, without}, target());
      EXPECT_EQ(d_logits.bytes(), without.bytes()) << "they are skipped like sentinels";
      continue;
    }
    auto const before = d_logits.bytes();
    EXPECT_MOE64_ERROR(route_backward({logits, {}, ids, d_weights, d_logits}, target()),
                       errc::invalid_expert, "[route_backward]",
                       std::to_string(static_cast<index_t>(bad)), "token 2", "k 1");
    EXPECT_EQ(d_logits.bytes(), before);
  }
}

}  // namespace
}  // namespace moe64
