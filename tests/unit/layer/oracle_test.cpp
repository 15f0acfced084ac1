// The layer, forward and backward with every gradient, against the oracle: what problem lines
// cannot say (storage, expert ranges, capacity, LoRA on one side, duplicates, sentinels).
#include "support/error_matcher.hpp"
#include "support/layer_fixture.hpp"
#include "support/layer_implementations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::gate_up_storage;
using test::layer_case;
using test::layer_memory;
using test::layer_numbers;

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

void expect_oracle_as_forced(layer_case const& c) {
  SCOPED_TRACE(to_string(c));
  layer_memory const memory(c);
  memory.run_forward();
  memory.run_backward();
  EXPECT_EQ(oracle_difference(c, memory), "");
}

/// On every implementation that takes it.
void expect_oracle(layer_case const& c) {
  test::for_each_implementation(c, expect_oracle_as_forced);
}

/// As it is, within bounds, and on integers, bit by bit.
void expect_oracle_on_all_numbers(layer_case const& c) {
  expect_oracle(c);
  expect_oracle(exact(c));
}

layer_case base(std::uint64_t seed = 1) {
  layer_case c;
  c.seed = seed;
  c.hidden = 25;
  c.inter = 19;
  c.top_k = 3;
  c.route(13, 5);
  return c;
}

layer_case e4m3(layer_case c, granularity scale = granularity::block(4, 8)) {
  c.weight = weight_format::e4m3;
  c.scale = scale;
  return c;
}

TEST(layer_oracle, everything_at_once_in_random_combinations) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    layer_case c = test::random_layer_case(seed);
    // Bounds are for numbers of a typical size, which sums of few products need not have; the
    // smallest widths are compared bit by bit below.
    c.hidden = std::max<index_t>(c.hidden, 16);
    c.inter = std::max<index_t>(c.inter, 16);
    expect_oracle(c);
  }
}

TEST(layer_oracle, integers_come_out_bit_by_bit_in_random_combinations) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    expect_oracle(exact(test::random_layer_case(seed)));
  }
}

TEST(layer_oracle, integers_come_out_bit_by_bit_in_narrow_types) {
  for (dtype const io : {dtype::bf16, dtype::f16}) {
    for (weight_format const weight :
         {weight_format::bf16, weight_format::e4m3, weight_format::int8}) {
      layer_case c;
      c.seed = 3;
      c.numbers = layer_numbers::signs;
      c.act.kind = activation::relu2;
      c.io = io;
      c.hidden = 40;
      c.inter = 36;
      c.top_k = 2;
      c.weight = weight;
      if (weight != weight_format::bf16) c.scale = granularity::block(16, 16);
      c.route(6, 3);
      layer_memory const memory(c);
      memory.run_forward();
      memory.run_backward();
      // Small enough that nothing is rounded: so says the oracle itself.
      for (index_t t = 0; t < c.token_count(); ++t) {
        for (double const y : oracle::forward_token(memory.desc, memory.call(), memory.rows(), t)) {
          ASSERT_EQ(y, oracle::round_to(y, io)) << "choose other numbers";
        }
      }
      EXPECT_EQ(oracle_difference(c, memory), "") << to_string(c);
    }
  }
}

TEST(layer_oracle, each_activation) {
  for (int kind = 0; kind <= static_cast<int>(last_activation); ++kind) {
    for (dtype const io : {dtype::f32, dtype::bf16, dtype::f16}) {
      layer_case c = base(static_cast<std::uint64_t>(kind) + 1);
      // The limits bite; not where numbers are coarse, because the gradient jumps there.
      c.act = {static_cast<activation>(kind), 1.25F, io == dtype::f32 ? 0.75F : 50.0F};
      c.io = io;
      c.bias = true;
      expect_oracle(c);
      expect_oracle(e4m3(c));
    }
  }
}

TEST(layer_oracle, lora_on_either_side_or_both) {
  for (index_t const rank : {1, 3, 16}) {
    for (int sides = 1; sides <= 3; ++sides) {
      layer_case c = base(static_cast<std::uint64_t>(rank));
      c.lora_gate_up = (sides & 1) != 0 ? rank : 0;
      c.lora_down = (sides & 2) != 0 ? rank : 0;
      c.storage = gate_up_storage::interleaved;
      expect_oracle_on_all_numbers(c);
      expect_oracle_on_all_numbers(e4m3(c));
      c = e4m3(c);
      c.mode = compute_mode::w8a8;
      expect_oracle(c);
    }
  }
  layer_case c = base();  // the two sides need not have the same rank
  c.lora_gate_up = 2;
  c.lora_down = 5;
  expect_oracle_on_all_numbers(c);
}

TEST(layer_oracle, every_storage_of_gate_and_up) {
  for (int storage = 0; storage < 3; ++storage) {
    for (bool const in_first : {false, true}) {
      for (granularity const scale :
           {granularity::none(), granularity::tensor(), granularity::row(),
            granularity::block(4, 8), granularity::group(6)}) {
        layer_case c = base();
        c.storage = static_cast<gate_up_storage>(storage);
        c.in_first = in_first;
        c.bias = true;
        c.lora_gate_up = 2;
        if (scale.kind != scale_kind::none) c = e4m3(c, scale);
        expect_oracle_on_all_numbers(c);
        c.padding = 6;
        expect_oracle_on_all_numbers(c);
      }
    }
  }
}

TEST(layer_oracle, weight_on_input_and_no_weights) {
  for (weight_placement const on : {weight_placement::output, weight_placement::input}) {
    layer_case c = base();
    c.weight_on = on;
    c.bias = true;
    c.lora_gate_up = 1;
    c.lora_down = 2;
    expect_oracle_on_all_numbers(c);
    expect_oracle_on_all_numbers(e4m3(c));
    for (dtype const type : {dtype::bf16, dtype::f16}) {
      c.weight_type = type;
      expect_oracle_on_all_numbers(c);
    }
    c.weights.clear();
    expect_oracle_on_all_numbers(c);
  }
}

TEST(layer_oracle, a_sub_range_of_the_experts) {
  for (index_t first = 0; first < 5; ++first) {
    for (index_t stored = 0; stored <= 5 - first; ++stored) {
      layer_case c = base();
      c.first_expert = first;
      c.stored = stored;
      c.bias = true;
      expect_oracle_on_all_numbers(c);
      layer_memory const memory(c);
      memory.run_forward();
      auto const status =
          test::bits_of(saved_plan(memory.desc, memory.shape, memory.forward.saved).status);
      auto const rows = memory.rows();
      EXPECT_EQ(status[place(plan_status::kept)], rows.row_to_slot.size());
      EXPECT_EQ(status[place(plan_status::skipped)], static_cast<std::uint64_t>(rows.skipped));
      EXPECT_EQ(status[place(plan_status::elsewhere)], static_cast<std::uint64_t>(rows.elsewhere));
    }
  }
}

TEST(layer_oracle, capacity_drops_the_later_slots) {
  for (index_t const capacity : {0, 1, 3, 1000}) {
    layer_case c = base();
    c.capacity = capacity;
    c.bias = true;
    expect_oracle_on_all_numbers(c);
    layer_memory const memory(c);
    memory.run_forward();
    auto const status =
        test::bits_of(saved_plan(memory.desc, memory.shape, memory.forward.saved).status);
    EXPECT_EQ(status[place(plan_status::dropped)],
              static_cast<std::uint64_t>(memory.rows().dropped));
    EXPECT_EQ(memory.rows().dropped > 0, capacity < 1000);
  }
}

TEST(layer_oracle, duplicates_sentinels_and_empty_experts) {
  layer_case c = base();
  c.ids = std::vector<index_t>(c.ids.size(), 3);  // one expert takes all, three times per token
  expect_oracle_on_all_numbers(c);
  for (index_t t = 0; t < c.token_count(); ++t) c.id(t, t % 3) = t % 2 == 0 ? -1 : 5;
  expect_oracle_on_all_numbers(c);
}

TEST(layer_oracle, all_slots_skipped_gives_zeros) {
  auto const zero = [](std::uint64_t bits) { return bits << 33U == 0; };  // of either sign
  for (index_t const sentinel : {-1, 5}) {
    layer_case c = base();
    c.bias = true;
    c.lora_down = 2;
    c.ids.assign(c.ids.size(), sentinel);
    layer_memory const memory(c);
    memory.run_forward();
    memory.run_backward();
    for (auto const& [name, codes] : memory.result().bits) {
      EXPECT_TRUE(std::all_of(codes.begin(), codes.end(), zero)) << name;
    }
  }
}

TEST(layer_oracle, no_tokens) {
  layer_case c = base();
  c.route(0, 4);
  c.bias = true;
  c.lora_gate_up = 2;
  layer_memory const memory(c);
  memory.run_forward();
  memory.run_backward();
  auto const found = memory.result();
  EXPECT_TRUE(found.bits.at("y").empty());
  for (auto const& [name, codes] : found.bits) {  // parameters have a gradient: it is zero
    EXPECT_EQ(codes, std::vector<std::uint64_t>(codes.size(), 0)) << name;
  }
  EXPECT_EQ(found.bits.at("gate_up.lora_a").size(), 4U * 2U * 25U);
}

TEST(layer_oracle, every_top_k_up_to_all_experts) {
  for (index_t top_k = 1; top_k <= 6; ++top_k) {
    layer_case c = base(static_cast<std::uint64_t>(top_k));
    c.top_k = top_k;
    c.route(9, 6, 0.1);
    for (index_t k = 0; k < top_k; ++k) c.id(4, k) = k;  // one token with different experts
    expect_oracle_on_all_numbers(c);
  }
}

TEST(layer_oracle, x_of_rank_three_and_ids_of_either_type) {
  for (dtype const type : {dtype::int32, dtype::int64}) {
    for (index_t const outer : {0, 1, 3, 12}) {
      layer_case c = base();
      c.route(12, 5);
      c.outer = outer;
      c.id_type = type;
      expect_oracle_on_all_numbers(c);
    }
  }
}

TEST(layer_oracle, one_token_one_expert_one_column) {
  layer_case c;
  c.hidden = 1;
  c.inter = 1;
  c.top_k = 1;
  c.bias = true;
  c.lora_gate_up = 1;
  c.lora_down = 1;
  c.route(1, 1, 0.0);
  expect_oracle(exact(c));
  expect_oracle(exact(e4m3(c, granularity::block(128, 128))));
}

TEST(layer_oracle, gate_and_up_have_their_own_grids) {
  // 20 rows with blocks of 8: each half has 3 scale rows, the last one partial. Were the fused
  // 40 rows one matrix, it would have 5.
  layer_case c = e4m3(base(), granularity::block(8, 8));
  c.inter = 20;
  layer_memory const memory(c);
  EXPECT_EQ(memory.desc.gate_up.weights.part(0).scales().extent[1], 3);
  EXPECT_EQ(memory.desc.gate_up.weights.part(1).scales().extent[1], 3);
  expect_oracle_on_all_numbers(c);
}

}  // namespace
}  // namespace moe64
