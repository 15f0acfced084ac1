// Gradients of each operation in f32 against central differences in double. Numbers are multiples
// of 2^-9 and steps are 2^-14, so that every perturbed f32 is exact.
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "support/weights.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace moe64 {
namespace {

using test::for_each_implementation;
using test::random_source;
using test::target;
using test::test_plan;
using test::test_tensor;

constexpr double step = 0x1p-14;
/// At most 64 additions of numbers of size 1, and a difference quotient that is off by 2^-28 times
/// a third derivative; relative to the largest slope.
constexpr double tolerance = 0x1p-18;

/// An odd multiple of 2^-9: never 0, where relu2 has a kink in its slope.
double grid(random_source const& random, index_t i) {
  return (std::floor(random.uniform(i) * 256.0) + 0.5) / 256.0;
}

test_tensor numbers(std::uint64_t seed, std::vector<index_t> const& extents) {
  random_source const random(seed);
  test_tensor result(dtype::f32, extents);
  index_t n = 0;
  result.fill([&](index_t, index_t, index_t) { return grid(random, n++); });
  return result;
}

/// `gradient` against the slopes of `loss` in every element of `parameter`.
void expect_slopes(std::string const& name, test_tensor& parameter, tensor_view const& gradient,
                   std::function<double()> const& loss) {
  tensor_view const& v = parameter.view();
  std::vector<double> slopes, found;
  double largest = 1.0;
  for (index_t i = 0; i < v.extent[0]; ++i) {
    for (index_t j = 0; j < (v.rank > 1 ? v.extent[1] : 1); ++j) {
      for (index_t k = 0; k < (v.rank > 2 ? v.extent[2] : 1); ++k) {
        double const kept = parameter.get(i, j, k);
        parameter.set(kept + step, i, j, k);
        double const above = loss();
        parameter.set(kept - step, i, j, k);
        double const below = loss();
        parameter.set(kept, i, j, k);
        slopes.push_back((above - below) / (2.0 * step));
        found.push_back(oracle::at(gradient, i, j, k));
        largest = std::max(largest, std::fabs(slopes.back()));
      }
    }
  }
  EXPECT_EQ(
      test::difference(found, slopes, std::vector<double>(slopes.size(), tolerance * largest)), "")
      << name;
}

// ---- activate -----------------------------------------------------------------------------------

test_plan routed(std::uint64_t seed, index_t tokens, index_t top_k, index_t experts) {
  std::vector<double> weights = test::random_weights(seed, tokens * top_k);
  for (double& weight : weights) weight = std::round(weight * 256.0) / 256.0;
  return test::make_plan(
      {tokens, top_k, experts, test::random_ids(seed, tokens * top_k, experts, 0.25), weights});
}

class activate_gradient : public testing::TestWithParam<activation> {};

TEST_P(activate_gradient, of_gate_and_up) {
  activation_spec const spec{GetParam(), 1.702F, 0.6251F};
  bool const gated = is_gated(spec.kind);
  index_t const inter = 13;
  test_plan const plan = routed(3, 5, 2, 3);
  index_t const capacity = 10, live = plan.live();
  ASSERT_LT(live, capacity);
  for (bool const weighted : {false, true}) {
    test_tensor gate = numbers(1, {capacity, inter}), up = numbers(2, {capacity, inter});
    test_tensor const d_out = numbers(3, {capacity, inter});
    test_tensor d_gate(dtype::f32, {capacity, inter}), d_up(dtype::f32, {capacity, inter});
    activate_backward_args args;
    args.activation = spec;
    args.gate = gate;
    args.d_out = d_out;
    args.live_rows = plan.plan.live_rows();
    args.d_gate = d_gate;
    if (gated) {
      args.up = up;
      args.d_up = d_up;
    }
    if (weighted) args.weighted_by = plan.plan;
    auto const loss = [&] {
      double sum = 0.0;
      for (index_t r = 0; r < live; ++r) {
        index_t const slot = plan.rows.row_to_slot[static_cast<std::size_t>(r)];
        double const weight = weighted ? plan.slot_weight.get(slot) : 1.0;
        for (index_t i = 0; i < inter; ++i) {
          double const a = oracle::activate(spec, gate.get(r, i), gated ? up.get(r, i) : 0.0);
          sum += weight * d_out.get(r, i) * a;
        }
      }
      return sum;
    };
    for_each_implementation(args, [&](activate_backward_args const& call) {
      d_gate.poison();
      d_up.poison();
      activate_backward(call, target());
      // Rows that do not exist have no slope and are not written.
      for (index_t r = live; r < capacity; ++r) EXPECT_TRUE(std::isnan(d_gate.get(r, 0)));
      for (test_tensor* const d : {&d_gate, &d_up}) {
        for (index_t r = live; r < capacity; ++r) {
          for (index_t i = 0; i < inter; ++i) d->set(0.0, r, i);
        }
      }
      expect_slopes("gate", gate, d_gate, loss);
      if (gated) expect_slopes("up", up, d_up, loss);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(all, activate_gradient,
                         testing::Values(activation::silu_glu, activation::gelu_glu,
                                         activation::gelu_tanh_glu, activation::gptoss_glu,
                                         activation::clamped_silu_glu, activation::silu,
                                         activation::gelu, activation::relu2, activation::step_glu),
                         [](auto const& given) { return std::string(name(given.param)); });

// ---- route --------------------------------------------------------------------------------------

using route_combination = std::tuple<scoring, bool, index_t, group_score>;
class route_gradient : public testing::TestWithParam<route_combination> {};

TEST_P(route_gradient, of_the_logits) {
  auto const [score, renormalize, groups, group_by] = GetParam();
  route_options const options{score, renormalize, 2.5F, groups, groups == 1 ? 1 : 2, group_by};
  index_t const tokens = 6, experts = 8, top_k = 3;
  // Logits of a token are all different, by more than a step: the choice does not change.
  test_tensor logits(dtype::f32, {tokens, experts});
  random_source const random(5);
  logits.fill([&](index_t t, index_t e, index_t) {
    return 0.25 * static_cast<double>((e * 5 + t * 3) % 8) - 1.0 +
           std::round(random.uniform(t * experts + e, 0.0, 24.0)) / 256.0;
  });
  test_tensor const d_weights = numbers(6, {tokens, top_k});
  auto const chosen = oracle::route(logits, {}, options, top_k);
  test_tensor ids(dtype::int64, {tokens, top_k});
  ids.fill([&](index_t t, index_t k, index_t) {
    return static_cast<double>(chosen.ids[static_cast<std::size_t>(t * top_k + k)]);
  });
  test_tensor d_logits(dtype::f32, {tokens, experts});
  route_backward_args args;
  args.logits = logits;
  args.options = options;
  args.expert_ids = ids;
  args.d_weights = d_weights;
  args.d_logits = d_logits;
  for_each_implementation(args, [&](route_backward_args const& call) {
    d_logits.poison();
    route_backward(call, target());
    expect_slopes("logits", logits, d_logits, [&] {
      auto const now = oracle::route(logits, {}, options, top_k);
      EXPECT_EQ(now.ids, chosen.ids);
      double sum = 0.0;
      for (index_t i = 0; i < tokens * top_k; ++i) {
        sum += now.weights[static_cast<std::size_t>(i)] * d_weights.get(i / top_k, i % top_k);
      }
      return sum;
    });
  });
}

INSTANTIATE_TEST_SUITE_P(
    all, route_gradient,
    testing::Combine(testing::Values(scoring::softmax, scoring::softmax_of_selected,
                                     scoring::sigmoid),
                     testing::Bool(), testing::Values(1, 4),
                     testing::Values(group_score::max, group_score::top2_sum)));

// ---- gather and combine -------------------------------------------------------------------------

class movement_gradient : public testing::TestWithParam<bool> {
 protected:
  static constexpr index_t tokens = 7, top_k = 3, experts = 4, hidden = 9, capacity = 21;
  bool weighted = GetParam();
  test_plan plan = routed(8, tokens, top_k, experts);

  /// sum over rows of rows(r) * g(r, i) * weight(r), where `value` says what lies in row r.
  double over_rows(std::function<double(index_t slot, index_t row, index_t i)> const& value) const {
    double sum = 0.0;
    for (index_t r = 0; r < plan.live(); ++r) {
      index_t const slot = plan.rows.row_to_slot[static_cast<std::size_t>(r)];
      double const weight = weighted ? plan.slot_weight.get(slot) : 1.0;
      for (index_t i = 0; i < hidden; ++i) sum += weight * value(slot, r, i);
    }
    return sum;
  }
};

TEST_P(movement_gradient, of_gather_is_combine) {
  test_tensor x = numbers(1, {tokens, hidden});
  test_tensor const d_rows = numbers(2, {capacity, hidden});
  test_tensor const dx(dtype::f32, {tokens, hidden});
  combine_args args;
  args.rows = quantized_view::plain(d_rows);
  args.plan = plan.plan;
  args.weighted = weighted;
  args.y = dx;
  for_each_implementation(args, [&](combine_args const& call) {
    combine(call, target());
    expect_slopes("x", x, dx, [&] {
      return over_rows([&](index_t slot, index_t r, index_t i) {
        return x.get(slot / top_k, i) * d_rows.get(r, i);
      });
    });
  });
}

TEST_P(movement_gradient, of_combine_is_gather) {
  test_tensor rows = numbers(3, {capacity, hidden});
  test_tensor const dy = numbers(4, {tokens, hidden});
  test_tensor d_rows(dtype::f32, {capacity, hidden});
  gather_args args;
  args.x = dy;
  args.plan = plan.plan;
  args.weighted = weighted;
  args.rows = d_rows;
  for_each_implementation(args, [&](gather_args const& call) {
    d_rows.poison();
    gather(call, target());
    for (index_t r = plan.live(); r < capacity; ++r) {
      for (index_t i = 0; i < hidden; ++i) {
        EXPECT_TRUE(std::isnan(d_rows.get(r, i)));
        d_rows.set(0.0, r, i);
      }
    }
    expect_slopes("rows", rows, d_rows, [&] {
      return over_rows([&](index_t slot, index_t r, index_t i) {
        return rows.get(r, i) * dy.get(slot / top_k, i);
      });
    });
  });
}

TEST_P(movement_gradient, of_the_slot_weights) {
  // y[t] = sum of weight * (rows + bias): left is gathered dy, right is rows.
  bool const bias_given = GetParam();
  test_tensor weights = numbers(5, {tokens, top_k});
  test_tensor const rows = numbers(6, {capacity, hidden}), dy = numbers(7, {tokens, hidden});
  test_tensor const bias = numbers(8, {experts, hidden});
  test_tensor left(dtype::f32, {capacity, hidden});
  for (index_t r = 0; r < plan.live(); ++r) {
    index_t const slot = plan.rows.row_to_slot[static_cast<std::size_t>(r)];
    for (index_t i = 0; i < hidden; ++i) left.set(dy.get(slot / top_k, i), r, i);
  }
  test_tensor const d_weights(dtype::f32, {tokens, top_k});
  slot_weight_gradient_args args;
  args.left = left;
  args.right = rows;
  if (bias_given) {
    args.bias_rows = left;
    args.bias = bias;
  }
  args.plan = plan.plan;
  args.d_weights = d_weights;
  for_each_implementation(args, [&](slot_weight_gradient_args const& call) {
    slot_weight_gradient(call, target());
    expect_slopes("weights", weights, d_weights, [&] {
      double sum = 0.0;
      for (index_t r = 0; r < plan.live(); ++r) {
        index_t const slot = plan.rows.row_to_slot[static_cast<std::size_t>(r)];
        for (index_t i = 0; i < hidden; ++i) {
          double const b = bias_given ? bias.get(plan.expert_of(r), i) : 0.0;
          sum += weights.get(slot / top_k, slot % top_k) * dy.get(slot / top_k, i) *
                 (rows.get(r, i) + b);
        }
      }
      return sum;
    });
  });
}

INSTANTIATE_TEST_SUITE_P(weighted, movement_gradient, testing::Bool());

// ---- grouped_gemm -------------------------------------------------------------------------------

/// y = x W^T + bias + scaling * (x A^T) B^T with gate and up, and every gradient of it.
class gemm_gradient : public testing::TestWithParam<bool> {
 protected:
  static constexpr index_t experts = 4, part_rows = 5, cols = 7, rank = 2, capacity = 11;
  static constexpr float scaling = -0.75F;
  bool quantized = GetParam();
  std::vector<index_t> const counts{3, 0, 5, 1};
  test_tensor begin = test::make_expert_begin(counts);
  index_t const live = 9;
  test_tensor x = numbers(1, {capacity, cols});
  test_tensor weights = numbers(2, {experts, 2 * part_rows, cols});
  test_tensor bias = numbers(3, {experts, 2 * part_rows});
  test_tensor a = numbers(4, {experts, rank, cols}), b = numbers(5, {experts, 2 * part_rows, rank});
  test_tensor dy = numbers(6, {capacity, 2 * part_rows});
  test::test_weights frozen = test::make_weights({dtype::e4m3, granularity::block(2, 3)}, experts,
                                                 2, part_rows, cols, test::content::random, 7);

  static weight_stack fused(tensor_view const& values) {
    auto const parts = split_gate_up(values, gate_up_layout::interleaved);
    return weight_stack::gate_up(quantized_view::plain(parts[0]), quantized_view::plain(parts[1]));
  }
  weight_stack stack() const { return quantized ? frozen.stack : fused(weights); }
  weight_stack stack_a() const { return weight_stack::single(quantized_view::plain(a)); }

  double loss() const {
    auto const biases = split_gate_up(bias, gate_up_layout::interleaved);
    weight_stack const w = stack(), w_b = fused(b);
    double sum = 0.0;
    index_t row = 0;
    for (index_t e = 0; e < experts; ++e) {
      for (index_t n = 0; n < counts[static_cast<std::size_t>(e)]; ++n, ++row) {
        std::vector<double> u;
        for (index_t r = 0; r < rank; ++r) {
          u.push_back(0.0);
          for (index_t k = 0; k < cols; ++k) u.back() += x.get(row, k) * a.get(e, r, k);
        }
        for (index_t out = 0; out < 2 * part_rows; ++out) {
          double y = oracle::at(biases[out < part_rows ? 0 : 1], e, out % part_rows);
          for (index_t k = 0; k < cols; ++k) y += x.get(row, k) * oracle::at(w, e, out, k);
          for (index_t r = 0; r < rank; ++r) {
            y += double{scaling} * u[static_cast<std::size_t>(r)] * oracle::at(w_b, e, out, r);
          }
          sum += dy.get(row, out) * y;
        }
      }
    }
    return sum;
  }
  void clear_dead_rows(test_tensor& d) const {
    for (index_t r = live; r < capacity; ++r) {
      for (index_t k = 0; k < d.view().extent[1]; ++k) {
        EXPECT_TRUE(std::isnan(d.get(r, k))) << "row " << r << " does not exist";
        d.set(0.0, r, k);
      }
    }
  }
  /// dy B
  test_tensor low_rank_gradient() const {
    test_tensor du(dtype::f32, {capacity, rank});
    grouped_gemm_args args;
    args.x = quantized_view::plain(dy);
    args.weights = fused(b);
    args.expert_begin = begin;
    args.transpose = true;
    args.y = du;
    grouped_gemm(args, target());
    return du;
  }
};

TEST_P(gemm_gradient, of_x_through_base_and_low_rank) {
  test_tensor const du = low_rank_gradient();
  test_tensor dx(dtype::f32, {capacity, cols});
  grouped_gemm_args args;
  args.x = quantized_view::plain(dy);
  args.weights = stack();
  args.expert_begin = begin;
  args.transpose = true;
  args.low_rank = {du, stack_a(), scaling};
  args.y = dx;
  for_each_implementation(args, [&](grouped_gemm_args const& call) {
    dx.poison();
    grouped_gemm(call, target());
    clear_dead_rows(dx);
    expect_slopes("x", x, dx, [&] { return loss(); });
  });
}

TEST_P(gemm_gradient, of_weights_and_bias) {
  test_tensor const dw(dtype::f32, {experts, 2 * part_rows, cols});
  test_tensor const db(dtype::f32, {experts, 2 * part_rows});
  grouped_gemm_wgrad_args args;
  args.dy = dy;
  args.x = x;
  args.expert_begin = begin;
  args.parts = 2;
  args.d_weights = split_gate_up(dw, gate_up_layout::interleaved);
  args.d_bias = split_gate_up(db, gate_up_layout::interleaved);
  for_each_implementation(args, [&](grouped_gemm_wgrad_args const& call) {
    grouped_gemm_wgrad(call, target());
    if (!quantized) expect_slopes("weights", weights, dw, [&] { return loss(); });
    expect_slopes("bias", bias, db, [&] { return loss(); });
  });
}

TEST_P(gemm_gradient, of_both_low_rank_factors) {
  test_tensor u(dtype::f32, {capacity, rank});
  grouped_gemm_args enter;
  enter.x = quantized_view::plain(x);
  enter.weights = stack_a();
  enter.expert_begin = begin;
  enter.y = u;
  grouped_gemm(enter, target());
  test_tensor const du = low_rank_gradient();
  test_tensor const da(dtype::f32, {experts, rank, cols});
  test_tensor const db(dtype::f32, {experts, 2 * part_rows, rank});
  grouped_gemm_wgrad_args args;
  args.dy = dy;
  args.x = u;
  args.expert_begin = begin;
  args.scaling = scaling;
  args.parts = 2;
  args.d_weights = split_gate_up(db, gate_up_layout::interleaved);
  for_each_implementation(args, [&](grouped_gemm_wgrad_args const& call) {
    grouped_gemm_wgrad(call, target());
    expect_slopes("B", b, db, [&] { return loss(); });
  });
  args.dy = du;
  args.x = x;
  args.parts = 1;
  args.d_weights = {da, tensor_view{}};
  for_each_implementation(args, [&](grouped_gemm_wgrad_args const& call) {
    grouped_gemm_wgrad(call, target());
    expect_slopes("A", a, da, [&] { return loss(); });
  });
}

INSTANTIATE_TEST_SUITE_P(quantized, gemm_gradient, testing::Bool());

}  // namespace
}  // namespace moe64
