// Experts over ranks, duplicates, sentinels and NaN. On integers, where no sum is rounded, the sum
// of what ranks compute is what one rank computes.
#include "support/layer_fixture.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_memory;
using test::layer_result;
using test::random_layer_case;
using test::random_source;

constexpr std::uint64_t problems = 120;
constexpr float f32_nan = std::numeric_limits<float>::quiet_NaN();

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

/// Boundaries of `ranks` ranges of experts; some ranks may get none.
std::vector<index_t> cuts(std::uint64_t seed, index_t experts, index_t ranks) {
  random_source const random(seed);
  std::vector<index_t> result{0};
  for (index_t r = 1; r < ranks; ++r) {
    result.push_back(random.between(r, result.back(), experts));
  }
  result.push_back(experts);
  return result;
}

/// f32 outputs added up in order of rank.
class rank_sum {
 public:
  void add(layer_memory const& memory) {
    for (auto const& [name, view] : memory.outputs()) {
      if (name.find('.') != std::string::npos) continue;
      auto& sum = sums_[name];
      sum.resize(place(view.size()), 0.0F);
      for (index_t i = 0; i < view.extent[0]; ++i) {
        for (index_t j = 0; j < view.extent[1]; ++j) {
          sum[place(i * view.extent[1] + j)] += static_cast<float>(oracle::at(view, i, j));
        }
      }
    }
  }
  void expect(layer_memory const& whole) const {
    for (auto const& [name, view] : whole.outputs()) {
      if (name.find('.') != std::string::npos) continue;
      for (index_t i = 0; i < view.extent[0]; ++i) {
        for (index_t j = 0; j < view.extent[1]; ++j) {
          ASSERT_EQ(double{sums_.at(name)[place(i * view.extent[1] + j)]}, oracle::at(view, i, j))
              << name << " at " << i << ", " << j;
        }
      }
    }
  }

 private:
  std::map<std::string, std::vector<float>> sums_;
};

void run_both(layer_memory const& memory) {
  memory.run_forward();
  memory.run_backward();
}

TEST(experts, over_ranks_by_sub_ranges) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case const c = exact(random_layer_case(seed));
    SCOPED_TRACE(to_string(c));
    index_t const experts = std::ssize(c.experts);
    index_t const ranks = random_source(seed).between(0, 2, 4);
    layer_memory const whole(c);
    run_both(whole);
    auto const all = whole.result();
    auto const begin = cuts(seed + 5000, experts, ranks);
    rank_sum sum;
    for (index_t r = 0; r < ranks; ++r) {
      layer_case mine = c;
      mine.first_expert = begin[place(r)];
      mine.stored = begin[place(r + 1)] - begin[place(r)];
      layer_memory const rank(mine);
      run_both(rank);
      sum.add(rank);
      std::vector<index_t> stored;
      for (index_t e = 0; e < mine.stored; ++e) stored.push_back(mine.first_expert + e);
      for (auto const& [name, bits] : rank.result().bits) {
        if (name.find('.') == std::string::npos) continue;
        EXPECT_EQ(bits, all.entries(name, stored, experts)) << name << " on rank " << r;
      }
    }
    sum.expect(whole);
  }
}

TEST(experts, parameter_gradients_of_a_sub_range_have_the_same_bits_on_any_numbers) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case const c = random_layer_case(seed);
    SCOPED_TRACE(to_string(c));
    index_t const experts = std::ssize(c.experts);
    layer_result const all = test::run(c);
    layer_case mine = c;
    mine.first_expert = experts / 3;
    mine.stored = experts - experts / 3;
    std::vector<index_t> stored;
    for (index_t e = 0; e < mine.stored; ++e) stored.push_back(mine.first_expert + e);
    for (auto const& [name, bits] : test::run(mine).bits) {
      if (name.find('.') == std::string::npos) continue;
      EXPECT_EQ(bits, all.entries(name, stored, experts)) << name;
    }
  }
}

TEST(experts, over_ranks_by_masking_with_minus_one) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case const c = exact(random_layer_case(seed));
    SCOPED_TRACE(to_string(c));
    index_t const experts = std::ssize(c.experts);
    index_t const ranks = random_source(seed).between(0, 2, 4);
    layer_memory const whole(c);
    run_both(whole);
    rank_sum sum;
    for (index_t r = 0; r < ranks; ++r) {
      layer_case mine = c;
      for (index_t& id : mine.ids) {
        if (id >= 0 && id < experts && id % ranks != r) id = -1;
      }
      layer_memory const rank(mine);
      run_both(rank);
      sum.add(rank);
    }
    sum.expect(whole);
  }
}

TEST(experts, one_expert_under_two_ids_shares_its_weight) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case c = exact(random_layer_case(seed));
    c.weight_on = weight_placement::output;
    if (c.weights.empty()) c.weigh();
    index_t const experts = std::ssize(c.experts);
    c.top_k = 1;
    c.route(c.token_count(), experts);
    layer_case twice = c;
    twice.experts.push_back(c.experts[0]);  // expert 0 is also expert `experts`
    twice.top_k = 2;
    twice.ids.clear();
    twice.weights.clear();
    for (index_t t = 0; t < c.token_count(); ++t) {
      index_t const id = c.ids[place(t)];
      bool const sentinel = id == experts;
      twice.ids.push_back(sentinel ? -1 : id);
      twice.ids.push_back(id == 0 ? experts : sentinel ? -1 : id);  // the other name, or twice
      twice.weights.push_back(c.weights[place(t)] * 0.75F);
      twice.weights.push_back(c.weights[place(t)] * 0.25F);
    }
    SCOPED_TRACE(to_string(twice));
    layer_result const once = test::run(c);
    layer_result const split = test::run(twice);
    EXPECT_EQ(split.bits.at("y"), once.bits.at("y"));
    EXPECT_EQ(split.bits.at("dx"), once.bits.at("dx"));
  }
}

TEST(experts, a_weight_of_zero_is_as_good_as_no_expert) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case zero = random_layer_case(seed);
    zero.weight_on = weight_placement::output;
    zero.weigh();
    layer_case none = zero;
    random_source const random(seed + 6000);
    for (index_t slot = 0; slot < std::ssize(zero.ids); ++slot) {
      if (!random.chance(slot, 0.4)) continue;
      zero.weights[place(slot)] = 0.0F;
      none.ids[place(slot)] = -1;
    }
    SCOPED_TRACE(to_string(none));
    layer_memory const a(zero), b(none);
    run_both(a);
    run_both(b);
    // Numbers, not bits: a zero may have either sign.
    for (std::size_t o = 0; o < 2; ++o) {  // y and dx
      auto const [name, left] = a.outputs()[o];
      tensor_view const right = b.outputs()[o].second;
      for (index_t t = 0; t < left.extent[0]; ++t) {
        for (index_t i = 0; i < left.extent[1]; ++i) {
          ASSERT_EQ(oracle::at(left, t, i), oracle::at(right, t, i)) << name << " of " << t;
        }
      }
    }
  }
}

TEST(experts, a_skipped_slot_contributes_nothing_even_if_its_weight_is_nan) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case c = random_layer_case(seed);
    c.weigh();
    index_t const experts = std::ssize(c.experts);
    random_source const random(seed + 7000);
    for (index_t slot = 0; slot < std::ssize(c.ids); ++slot) {
      if (random.chance(slot, 0.3))
        c.ids[place(slot)] = random.chance(slot + 1, 0.5) ? -1 : experts;
    }
    SCOPED_TRACE(to_string(c));
    layer_result const before = test::run(c);
    for (index_t slot = 0; slot < std::ssize(c.ids); ++slot) {
      index_t const id = c.ids[place(slot)];
      if (id < 0 || id >= experts) c.weights[place(slot)] = f32_nan;
    }
    EXPECT_EQ(test::run(c).difference(before), "");
  }
}

TEST(experts, nan_stays_in_its_token) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case const c = random_layer_case(seed);
    SCOPED_TRACE(to_string(c));
    index_t const tokens = c.token_count();
    index_t const sick = random_source(seed + 8000).below(0, tokens);
    layer_memory clean(c), with_nan(c);
    run_both(clean);
    with_nan.owner(with_nan.forward.x).set(std::nan(""), sick, c.hidden / 2);
    run_both(with_nan);
    std::vector<index_t> others;
    for (index_t t = 0; t < tokens; ++t) {
      if (t != sick) others.push_back(t);
    }
    layer_result const left = clean.result();
    layer_result const right = with_nan.result();
    for (std::string const name : {"y", "dx", "d_weights"}) {
      EXPECT_EQ(right.entries(name, others, tokens), left.entries(name, others, tokens)) << name;
    }
    bool lives = false;
    for (index_t k = 0; k < c.top_k; ++k) {
      index_t const id = c.ids[place(sick * c.top_k + k)];
      lives = lives || (id >= 0 && id < std::ssize(c.experts));
    }
    tensor_view const y = with_nan.forward.y.as_matrix();
    for (index_t i = 0; i < c.hidden; ++i) {
      EXPECT_EQ(std::isnan(oracle::at(y, sick, i)), lives) << "column " << i;
    }
  }
}

TEST(experts, nan_stays_in_its_expert) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case const c = random_layer_case(seed);
    SCOPED_TRACE(to_string(c));
    index_t const experts = std::ssize(c.experts);
    index_t const sick = random_source(seed + 9000).below(0, experts);
    layer_case ill = c;
    ill.experts[place(sick)] = test::poisoned_expert;
    layer_result const left = test::run(c);
    layer_result const right = test::run(ill);
    std::vector<index_t> healthy_tokens, healthy_experts;
    for (index_t t = 0; t < c.token_count(); ++t) {
      bool meets = false;
      for (index_t k = 0; k < c.top_k; ++k) {
        meets = meets || c.ids[place(t * c.top_k + k)] == sick;
      }
      if (!meets) healthy_tokens.push_back(t);
    }
    for (index_t e = 0; e < experts; ++e) {
      if (e != sick) healthy_experts.push_back(e);
    }
    for (auto const& [name, bits] : left.bits) {
      bool const per_token = name.find('.') == std::string::npos;
      auto const& healthy = per_token ? healthy_tokens : healthy_experts;
      index_t const count = per_token ? c.token_count() : experts;
      EXPECT_EQ(right.entries(name, healthy, count), left.entries(name, healthy, count)) << name;
    }
  }
}

}  // namespace
}  // namespace moe64
