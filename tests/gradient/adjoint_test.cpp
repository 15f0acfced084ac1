// <J x, y> = <x, J' y> for every linear operation and the one that is its transpose, in f32, inner
// products in double.
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "support/weights.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::for_each_implementation;
using test::random_source;
using test::target;
using test::test_plan;
using test::test_tensor;

constexpr std::uint64_t problems = 40;

/// Each side is a sum of the same products, of which no more than `additions` are added up in f32:
/// together they are off by at most (additions + 2) * 2^-24 of the sum of absolute products.
void expect_equal(double left, double right, double absolute, index_t additions) {
  EXPECT_NEAR(left, right, static_cast<double>(additions + 2) * 0x1p-24 * absolute);
  EXPECT_GT(absolute, 0.0);
}

double inner(tensor_view const& left, tensor_view const& right, index_t rows) {
  double sum = 0.0;
  for (index_t i = 0; i < rows; ++i) {
    for (index_t j = 0; j < left.extent[1]; ++j) {
      sum += oracle::at(left, i, j) * oracle::at(right, i, j);
    }
  }
  return sum;
}

test_tensor uniform(std::uint64_t seed, std::vector<index_t> const& extents) {
  test_tensor result(dtype::f32, extents);
  result.fill_uniform(seed);
  return result;
}

TEST(adjoint, gather_and_combine) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    random_source const random(seed);
    index_t const tokens = random.between(0, 1, 30), top_k = random.between(1, 1, 5);
    index_t const experts = random.between(2, 1, 6), hidden = random.between(3, 1, 70);
    std::vector<index_t> ids = test::random_ids(seed, tokens * top_k, experts);
    ids[0] = experts - 1;
    test_plan const plan = test::make_plan(
        {tokens, top_k, experts, ids, test::random_weights(seed + 1, tokens * top_k)});
    index_t const capacity = tokens * top_k;
    test_tensor const x = uniform(seed + 2, {tokens, hidden});
    test_tensor const y = uniform(seed + 3, {capacity, hidden});
    for (bool const weighted : {false, true}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + (weighted ? " weighted" : ""));
      test_tensor const rows(dtype::f32, {capacity, hidden}), back(dtype::f32, {tokens, hidden});
      gather_args there{x, {}, plan.plan, weighted, rows, {}, {}};
      combine_args here{quantized_view::plain(y), plan.plan, weighted, back, {}};
      double absolute = 0.0;
      for (index_t r = 0; r < plan.live(); ++r) {
        index_t const slot = plan.rows.row_to_slot[static_cast<std::size_t>(r)];
        double const weight = weighted ? std::fabs(plan.slot_weight.get(slot)) : 1.0;
        for (index_t i = 0; i < hidden; ++i) {
          absolute += weight * std::fabs(x.get(slot / top_k, i) * y.get(r, i));
        }
      }
      for_each_implementation(there, [&](gather_args const& g) {
        for_each_implementation(here, [&](combine_args const& c) {
          gather(g, target());
          combine(c, target());
          expect_equal(inner(rows, y, plan.live()), inner(x, back, tokens), absolute, top_k);
        });
      });
    }
  }
}

/// One stack in one format, applied to rows and transposed.
void expect_transpose(test::weight_spec const& spec, std::uint64_t seed) {
  SCOPED_TRACE(to_string(spec) + ", seed " + std::to_string(seed));
  random_source const random(seed);
  int const parts = spec.layout == gate_up_layout::interleaved || random.chance(0, 0.5) ? 2 : 1;
  index_t const part_rows = random.between(1, 1, 20), cols = random.between(2, 1, 40);
  std::vector<index_t> counts;
  for (index_t e = 0; e < 4; ++e) counts.push_back(random.below(3 + e, 6));
  counts[3] += 1;
  index_t live = 0;
  for (index_t const count : counts) live += count;
  auto const weights =
      test::make_weights(spec, 4, parts, part_rows, cols, test::content::random, seed);
  index_t const out = parts * part_rows;
  test_tensor const begin = test::make_expert_begin(counts);
  test_tensor const x = uniform(seed + 1, {live + 2, cols}), y = uniform(seed + 2, {live + 2, out});
  test_tensor const jx(dtype::f32, {live + 2, out}), jy(dtype::f32, {live + 2, cols});
  grouped_gemm_args there, back;
  there.x = quantized_view::plain(x);
  there.y = jx;
  back.x = quantized_view::plain(y);
  back.y = jy;
  back.transpose = true;
  for (grouped_gemm_args* const args : {&there, &back}) {
    args->weights = weights.stack;
    args->expert_begin = begin;
  }
  double absolute = 0.0;
  index_t row = 0;
  for (index_t e = 0; e < 4; ++e) {
    for (index_t n = 0; n < counts[static_cast<std::size_t>(e)]; ++n, ++row) {
      for (index_t o = 0; o < out; ++o) {
        for (index_t k = 0; k < cols; ++k) {
          absolute += std::fabs(oracle::at(weights.stack, e, o, k) * x.get(row, k) * y.get(row, o));
        }
      }
    }
  }
  for_each_implementation(there, [&](grouped_gemm_args const& forward) {
    for_each_implementation(back, [&](grouped_gemm_args const& backward) {
      grouped_gemm(forward, target());
      grouped_gemm(backward, target());
      // Dequantising rounds each weight once more, by the same amount on both sides.
      expect_equal(inner(jx, y, live), inner(x, jy, live), absolute, out + cols);
    });
  });
}

TEST(adjoint, grouped_gemm_and_its_transpose_in_every_format) {
  std::uint64_t seed = 1;
  for (test::weight_spec spec : test::every_weight_format()) {
    for (int i = 0; i < 3; ++i) expect_transpose(spec, ++seed);
    spec.layout = gate_up_layout::interleaved;
    expect_transpose(spec, ++seed);
    spec.in_first = bits(spec.type) > 4;
    expect_transpose(spec, ++seed);
  }
}

TEST(adjoint, grouped_gemm_as_a_function_of_its_weights) {
  // <x W^T + b, dy> = <W, wgrad(dy, x)> + <b, bias gradient>
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_source const random(seed);
    index_t const part_rows = random.between(1, 1, 20), cols = random.between(2, 1, 40);
    std::vector<index_t> counts;
    for (index_t e = 0; e < 4; ++e) counts.push_back(random.below(3 + e, 9));
    counts[2] += 1;
    index_t live = 0;
    for (index_t const count : counts) live += count;
    index_t const out = 2 * part_rows;
    test_tensor const begin = test::make_expert_begin(counts);
    test_tensor const w = uniform(seed, {4, out, cols}), b = uniform(seed + 1, {4, out});
    test_tensor const x = uniform(seed + 2, {live, cols}), dy = uniform(seed + 3, {live, out});
    test_tensor const y(dtype::f32, {live, out});
    test_tensor const dw(dtype::f32, {4, out, cols}), db(dtype::f32, {4, out});
    auto const halves = [](tensor_view const& t) {
      return split_gate_up(t, gate_up_layout::concatenated);
    };
    grouped_gemm_args there;
    there.x = quantized_view::plain(x);
    there.weights = weight_stack::gate_up(quantized_view::plain(halves(w)[0]),
                                          quantized_view::plain(halves(w)[1]));
    there.expert_begin = begin;
    there.bias = halves(b);
    there.y = y;
    grouped_gemm_wgrad_args back;
    back.dy = dy;
    back.x = x;
    back.expert_begin = begin;
    back.parts = 2;
    back.d_weights = halves(dw);
    back.d_bias = halves(db);
    double absolute = 0.0;
    index_t row = 0, longest = 0;
    for (index_t e = 0; e < 4; ++e) {
      index_t const count = counts[static_cast<std::size_t>(e)];
      longest = std::max(longest, count);
      for (index_t n = 0; n < count; ++n, ++row) {
        for (index_t o = 0; o < out; ++o) {
          absolute += std::fabs(b.get(e, o) * dy.get(row, o));
          for (index_t k = 0; k < cols; ++k) {
            absolute += std::fabs(w.get(e, o, k) * x.get(row, k) * dy.get(row, o));
          }
        }
      }
    }
    for_each_implementation(there, [&](grouped_gemm_args const& forward) {
      for_each_implementation(back, [&](grouped_gemm_wgrad_args const& backward) {
        grouped_gemm(forward, target());
        grouped_gemm_wgrad(backward, target());
        double parameters = inner(b, db, 4);
        for (index_t e = 0; e < 4; ++e) {
          for (index_t o = 0; o < out; ++o) {
            for (index_t k = 0; k < cols; ++k) parameters += w.get(e, o, k) * dw.get(e, o, k);
          }
        }
        expect_equal(inner(y, dy, live), parameters, absolute, cols + 1 + longest);
      });
    });
  }
}

TEST(adjoint, the_low_rank_term) {
  // u -> scaling * u B^T has the transpose y -> scaling * y B, and so has x -> x A^T.
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_source const random(seed);
    index_t const out = random.between(0, 1, 30), rank = random.between(1, 1, 17);
    index_t const cols = random.between(2, 1, 30), live = random.between(3, 1, 9);
    float const scaling = 1.5F;
    test_tensor const begin = test::make_expert_begin({0, live});
    test_tensor const zeros_in = uniform(seed, {live, cols}), b = uniform(seed + 1, {2, out, rank});
    test_tensor zero_weights(dtype::f32, {2, out, cols});
    zero_weights.fill([](index_t, index_t, index_t) { return 0.0; });
    test_tensor const u = uniform(seed + 2, {live, rank}), y = uniform(seed + 3, {live, out});
    test_tensor const ju(dtype::f32, {live, out}), jy(dtype::f32, {live, rank});
    grouped_gemm_args there;
    there.x = quantized_view::plain(zeros_in);
    there.weights = weight_stack::single(quantized_view::plain(zero_weights));
    there.expert_begin = begin;
    there.low_rank = {u, weight_stack::single(quantized_view::plain(b)), scaling};
    there.y = ju;
    grouped_gemm_args back;
    back.x = quantized_view::plain(y);
    back.weights = weight_stack::single(quantized_view::plain(b));
    back.expert_begin = begin;
    back.transpose = true;
    back.y = jy;
    double absolute = 0.0;
    for (index_t r = 0; r < live; ++r) {
      for (index_t o = 0; o < out; ++o) {
        for (index_t k = 0; k < rank; ++k) {
          absolute += std::fabs(double{scaling} * b.get(1, o, k) * u.get(r, k) * y.get(r, o));
        }
      }
    }
    for_each_implementation(there, [&](grouped_gemm_args const& forward) {
      grouped_gemm(forward, target());
      grouped_gemm(back, target());
      expect_equal(inner(ju, y, live), double{scaling} * inner(u, jy, live), absolute,
                   rank + 2 + out);
    });
  }
}

}  // namespace
}  // namespace moe64
