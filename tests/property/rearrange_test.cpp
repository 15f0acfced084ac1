// The bits of a token do not depend on where it, its experts or their memory lie. Every test draws
// many problems; a failure prints the problem, whose first word is its seed.
#include "support/layer_fixture.hpp"
#include "support/layer_implementations.hpp"
#include "support/random.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_result;
using test::poisoned_expert;
using test::random_layer_case;
using test::random_order;
using test::random_source;

constexpr std::uint64_t problems = 120;

std::vector<index_t> range(index_t begin, index_t end) {
  std::vector<index_t> result(static_cast<std::size_t>(end - begin));
  std::iota(result.begin(), result.end(), begin);
  return result;
}

/// Outputs with an entry per token.
std::vector<std::string> const token_outputs{"y", "dx", "d_weights"};

/// Outputs with an entry per expert.
std::vector<std::string> parameter_outputs(layer_result const& result) {
  std::vector<std::string> names;
  for (auto const& output : result.bits) {
    if (output.first.find('.') != std::string::npos) names.push_back(output.first);
  }
  return names;
}

TEST(rearrange, permuting_tokens_permutes_outputs) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case const c = random_layer_case(seed);
    SCOPED_TRACE(to_string(c));
    index_t const tokens = c.token_count();
    auto const order = random_order(seed + 1000, tokens);
    layer_result const before = test::run(c);
    layer_result const after = test::run(with_tokens(c, order));
    for (std::string const& name : token_outputs) {
      EXPECT_EQ(after.bits.at(name), before.entries(name, order, tokens)) << name;
    }
  }
}

TEST(rearrange, relabelling_experts_changes_nothing) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case const c = random_layer_case(seed);
    SCOPED_TRACE(to_string(c));
    index_t const experts = std::ssize(c.experts);
    auto const order = random_order(seed + 2000, experts);
    layer_result const before = test::run(c);
    layer_result const after = test::run(with_experts(c, order));
    for (std::string const& name : token_outputs) {
      EXPECT_EQ(after.bits.at(name), before.bits.at(name)) << name;
    }
    for (std::string const& name : parameter_outputs(before)) {
      EXPECT_EQ(after.bits.at(name), before.entries(name, order, experts)) << name;
    }
  }
}

TEST(rearrange, unused_experts_full_of_nan_change_nothing) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case const c = random_layer_case(seed);
    SCOPED_TRACE(to_string(c));
    index_t const experts = std::ssize(c.experts);
    random_source const random(seed + 3000);
    std::vector<index_t> places;  // new experts before, between and behind
    std::vector<index_t> kept, added;
    for (index_t e = 0; e <= experts; ++e) {
      for (index_t n = random.below(e, 3) + (e == 0 ? 1 : 0); n > 0; --n) {
        added.push_back(std::ssize(places));
        places.push_back(poisoned_expert);
      }
      if (e == experts) break;
      kept.push_back(std::ssize(places));
      places.push_back(e);
    }
    layer_result const before = test::run(c);
    layer_result const after = test::run(with_experts(c, places));
    for (std::string const& name : token_outputs) {
      EXPECT_EQ(after.bits.at(name), before.bits.at(name)) << name;
    }
    for (std::string const& name : parameter_outputs(before)) {
      index_t const all = std::ssize(places);
      EXPECT_EQ(after.entries(name, kept, all), before.bits.at(name)) << name;
      for (std::uint64_t const bits : after.entries(name, added, all)) {
        ASSERT_TRUE(bits == 0 || bits == 0x80000000U || bits == 0x8000U) << name << " is not zero";
      }
    }
  }
}

TEST(rearrange, splitting_the_batch_anywhere) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case const c = random_layer_case(seed);
    SCOPED_TRACE(to_string(c));
    index_t const tokens = c.token_count();
    index_t const cut = random_source(seed + 4000).between(0, 0, tokens);
    layer_result const whole = test::run(c);
    for (auto const& part : {range(0, cut), range(cut, tokens)}) {
      layer_result const half = test::run(with_tokens(c, part));
      for (std::string const& name : token_outputs) {
        EXPECT_EQ(half.bits.at(name), whole.entries(name, part, tokens))
            << name << " of " << part.size() << " tokens, cut at " << cut;
      }
    }
  }
}

TEST(rearrange, a_token_alone_is_the_token_in_its_batch) {
  for (std::uint64_t seed = 1; seed <= problems / 2; ++seed) {
    layer_case const c = random_layer_case(seed);
    SCOPED_TRACE(to_string(c));
    layer_result const whole = test::run(c);
    for (index_t t = 0; t < c.token_count(); t += 3) {
      layer_result const alone = test::run(with_tokens(c, {t}));
      for (std::string const& name : token_outputs) {
        EXPECT_EQ(alone.bits.at(name), whole.entries(name, {t}, c.token_count()))
            << name << " of token " << t;
      }
    }
  }
}

TEST(rearrange, a_token_among_many_rows_of_one_expert) {
  // More rows than any tile holds, in one expert: the token meets every place in a tile.
  layer_case c = random_layer_case(5);
  c.hidden = test::on_cuda ? 48 : 33;
  c.inter = test::on_cuda ? 16 : 17;
  c.top_k = 1;
  c.route(70, 2, 0.0);
  c.ids.assign(70, 1);
  c.implementation = test::draw_implementation(c);
  layer_result const whole = test::run(c);
  for (index_t t = 0; t < 70; ++t) {
    layer_result const alone = test::run(with_tokens(c, {t}));
    for (std::string const& name : token_outputs) {
      ASSERT_EQ(alone.bits.at(name), whole.entries(name, {t}, 70)) << name << " of token " << t;
    }
  }
}

/// On a GPU how the operands lie in memory decides which implementation is the best, and with it
/// the last bits: here one is named.
layer_case with_a_named_implementation(layer_case c) {
  if (test::on_cuda && c.implementation.empty()) c.implementation = "reference";
  return c;
}

TEST(rearrange, strides_and_what_lies_between_do_not_matter) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case c = with_a_named_implementation(random_layer_case(seed));
    SCOPED_TRACE(to_string(c));
    layer_result const dense = test::run(c);
    bool const whole_vectors =
        c.implementation == "sm80_mma" || c.implementation.starts_with("sm90_");
    for (index_t const padding :
         whole_vectors ? std::vector<index_t>{32, 96} : std::vector<index_t>{2, 10}) {
      for (index_t const step :
           whole_vectors ? std::vector<index_t>{1} : std::vector<index_t>{1, 3}) {
        c.padding = padding;  // of x, y, ids, weights, stacks, scales, biases and all gradients
        c.step = step;
        EXPECT_EQ(test::run(c).difference(dense), "") << padding << ", columns every " << step;
      }
    }
  }
}

TEST(rearrange, storage_of_the_stacks_does_not_matter) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case c = with_a_named_implementation(random_layer_case(seed));
    SCOPED_TRACE(to_string(c));
    layer_result const first = test::run(c);
    for (int storage = 0; storage < 3; ++storage) {
      c.storage = static_cast<test::gate_up_storage>(storage);
      for (bool const in_first : {false, true}) {
        c.in_first = in_first && bits(value_type(c.weight)) > 4;
        bool const scattered = c.in_first && c.storage == test::gate_up_storage::interleaved;
        if (scattered && c.implementation == "sm80_mma") continue;
        if (c.in_first && c.implementation.starts_with("sm90_")) continue;
        EXPECT_EQ(test::run(c).difference(first), "") << storage << in_first;
      }
    }
    c.id_type = c.id_type == dtype::int32 ? dtype::int64 : dtype::int32;
    EXPECT_EQ(test::run(c).difference(first), "") << "the other type of ids";
  }
}

TEST(rearrange, leading_dimensions_of_x_do_not_matter) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case c = random_layer_case(seed);
    SCOPED_TRACE(to_string(c));
    layer_result const matrix = test::run(c);
    for (index_t outer = 1; outer <= c.token_count(); ++outer) {
      if (c.token_count() % outer != 0) continue;
      c.outer = outer;
      EXPECT_EQ(test::run(c).difference(matrix), "") << outer;
    }
  }
}

TEST(rearrange, twice_the_codes_with_half_the_scales) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case c = random_layer_case(seed);
    if (!is_quantized(value_type(c.weight))) continue;
    SCOPED_TRACE(to_string(c));
    layer_result const before = test::run(c);
    c.doubled = true;
    EXPECT_EQ(test::run(c).difference(before), "");
    ++compared;
  }
  EXPECT_GT(compared, 40);
}

}  // namespace
}  // namespace moe64
