#pragma once

#include "moe64/routing.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"

#include <cstdint>
#include <vector>

namespace moe64::test {

/// What a plan is made of.
struct routing_spec {
  index_t tokens = 0;
  index_t top_k = 1;
  index_t experts = 1;
  std::vector<index_t> ids = {};     ///< [tokens * top_k]
  std::vector<double> weights = {};  ///< [tokens * top_k], or empty: all 1
  index_t experts_total = -1;        ///< -1: experts
  index_t first_expert = 0;
  index_t capacity = -1;
};

/// A routing plan that the oracle made; entries that a plan leaves unspecified are poison.
struct test_plan {
  test_tensor ids;  // [tokens, top_k] int64
  oracle::planned rows;
  test_tensor expert_begin, row_to_slot, slot_to_row, slot_weight, status;
  routing_plan plan;

  [[nodiscard]] index_t live() const { return rows.expert_begin.back(); }
  [[nodiscard]] index_t expert_of(index_t row) const;
};

[[nodiscard]] test_plan make_plan(routing_spec const& spec);

/// Ids of [-1, experts] with duplicates; about `sentinels` of them are -1 or experts.
[[nodiscard]] std::vector<index_t> random_ids(std::uint64_t seed, index_t slots, index_t experts,
                                              double sentinels = 0.2);
/// Numbers of [-1, 1) that f32 holds.
[[nodiscard]] std::vector<double> random_weights(std::uint64_t seed, index_t slots);

/// [counts.size() + 1] int64: the ranges of experts that have so many rows each.
[[nodiscard]] test_tensor make_expert_begin(std::vector<index_t> const& counts);

}  // namespace moe64::test
