// A token has the same bits alone and among any number of others, on every implementation: experts
// get from one row to hundreds, so paths for few rows and for whole tiles meet the same tokens.
#include "support/layer_batch.hpp"
#include "support/layer_implementations.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::layer_batch;
using test::layer_case;
using test::layer_memory;
using test::layer_result;
using test::random_source;

struct format {
  std::string name;
  weight_format weight;
  granularity scale = {};
  dtype scale_type = dtype::f32;
  compute_mode mode = compute_mode::automatic;
  dtype io = dtype::bf16;
};

struct extents {
  index_t hidden, inter, tokens, experts;
};

/// More than half of all rows go to the first expert, and one token in 200 to the last one.
layer_case skewed(format const& f, extents const& size) {
  layer_case c;
  c.seed = 11;
  c.hidden = size.hidden;
  c.inter = size.inter;
  c.weight = f.weight;
  c.scale = f.scale;
  c.scale_type = f.scale_type;
  c.mode = f.mode;
  c.io = f.io;
  c.parameter_type = f.io;
  c.route(size.tokens, size.experts, 0.0);
  random_source const random(77);
  for (index_t t = 0; t < size.tokens; ++t) {
    for (index_t k = 0; k < c.top_k; ++k) {
      double const u = random.uniform(t * c.top_k + k, 0.0, 1.0);
      c.id(t, k) = static_cast<index_t>(u * u * u * static_cast<double>(size.experts - 1));
    }
    if (t % 200 == 0) c.id(t, 1) = size.experts - 1;
  }
  return c;
}

/// `count` of all tokens in random order, the first one among them.
std::vector<index_t> some_tokens(index_t count, index_t all) {
  auto const seed = static_cast<std::uint64_t>(count);
  std::vector<index_t> order = test::random_order(seed, all);
  auto const first = std::find(order.begin(), order.end(), 0);
  index_t const wanted = random_source(seed + 1).below(0, count);
  std::iter_swap(first, order.begin() + wanted);
  order.resize(static_cast<std::size_t>(count));
  return order;
}

constexpr index_t counts[] = {2, 3, 4, 5, 8, 16, 64, 257, 2048};

/// Every token of every batch against the token among all others.
void expect_the_same_in_every_batch(layer_case const& c, std::vector<std::string> const& names) {
  layer_memory const memory(c);
  layer_batch whole(memory, test::all_tokens(c), false);
  std::vector<layer_result> wanted;
  for (std::string const& name : names) {
    whole.run(name);
    wanted.push_back(whole.result());
  }
  index_t const all = c.token_count();
  std::vector<std::vector<index_t>> batches{{0}, {1}, {all / 2}, {all - 1}};
  for (index_t const count : counts) {
    if (count <= all) batches.push_back(some_tokens(count, all));
  }
  for (std::vector<index_t> const& places : batches) {
    layer_batch batch(memory, places, false);
    for (std::size_t i = 0; i < names.size(); ++i) {
      SCOPED_TRACE((names[i].empty() ? "best" : names[i]) + " on " + std::to_string(places.size()) +
                   " tokens from " + std::to_string(places[0]));
      batch.run(names[i]);
      layer_result const found = batch.result();
      for (auto const& [name, bits] : found.bits) {
        ASSERT_EQ(bits, wanted[i].entries(name, places, all)) << name;
      }
    }
  }
}

class batch : public testing::TestWithParam<format> {};

bool is_slow(std::string const& name) { return name == "scalar" || name == "reference"; }

TEST_P(batch, a_token_has_the_same_bits_among_1_to_2048) {
  layer_case const c = skewed(GetParam(), {256, 192, 2048, 8});
  std::vector<std::string> names = test::implementations_of(c);
  std::erase_if(names, is_slow);
  names.emplace_back();
  expect_the_same_in_every_batch(c, names);
}

TEST_P(batch, a_token_has_the_same_bits_among_1_to_257_in_wide_layers) {
  // Sums over more columns than any tile of weights holds.
  layer_case const c = skewed(GetParam(), {1312, 544, 257, 2});
  std::vector<std::string> names = test::implementations_of(c);
  std::erase_if(names, is_slow);
  if (names.empty()) names.emplace_back();
  expect_the_same_in_every_batch(c, names);
}

TEST_P(batch, a_token_has_the_same_bits_among_1_to_2048_in_narrow_layers) {
  // One number at a time: the same tokens and rows in a layer that such code can afford.
  layer_case const c = skewed(GetParam(), {40, 24, 2048, 8});
  std::vector<std::string> names = test::implementations_of(c);
  std::erase_if(names, [](std::string const& name) { return !is_slow(name); });
  expect_the_same_in_every_batch(c, names);
}

INSTANTIATE_TEST_SUITE_P(
    of, batch,
    testing::Values(format{"e4m3_block", weight_format::e4m3, granularity::block(128, 128)},
                    format{"e4m3_row", weight_format::e4m3, granularity::row()},
                    format{"e4m3_block_in_f32", weight_format::e4m3, granularity::block(128, 128),
                           dtype::f32, compute_mode::automatic, dtype::f32},
                    format{"int8_row", weight_format::int8, granularity::row()},
                    format{"mxfp4", weight_format::mxfp4, granularity::group(32), dtype::e8m0},
                    format{"bf16", weight_format::bf16},
                    format{"e4m3_block_w8a8", weight_format::e4m3, granularity::block(128, 128),
                           dtype::f32, compute_mode::w8a8},
                    format{"int8_row_w8a8", weight_format::int8, granularity::row(), dtype::f32,
                           compute_mode::w8a8}),
    [](auto const& given) { return given.param.name; });

}  // namespace
}  // namespace moe64
