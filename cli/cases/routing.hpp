#pragma once

#include "cases/arena.hpp"
#include "cases/numbers.hpp"
#include "moe64/problem.hpp"
#include "oracle/oracle.hpp"

#include <cstdint>
#include <vector>

namespace moe64::cases {

/// Who goes where in one case, and the plan that must follow from it.
struct routed_tokens {
  tensor_view expert_ids;  ///< [tokens, top_k] int64, or int32 when the seed is even
  tensor_view weights;     ///< [tokens, top_k] f32
  oracle::planned rows;

  [[nodiscard]] index_t live() const noexcept { return std::ssize(rows.row_to_slot); }
  [[nodiscard]] index_t experts() const noexcept { return std::ssize(rows.expert_begin) - 1; }
  [[nodiscard]] index_t rows_of(index_t expert) const;
  [[nodiscard]] index_t expert_of(index_t row) const;
  [[nodiscard]] double weight_of(index_t row) const;
  /// Experts of the slots of one token that have a row.
  [[nodiscard]] std::vector<index_t> experts_of_token(index_t token) const;
  /// Experts that have rows, in order.
  [[nodiscard]] std::vector<index_t> used_experts() const;
};

/// The routing of p: uniform and zipf choose different experts for the slots of a token (as long as
/// there are enough), one_expert sends all slots to the last expert, sentinel replaces a share of
/// the uniform choices by -1 or `experts`. But for sentinels, the last slot of all always goes to
/// the last expert, so that the far end of every stack is read. A `draw` past 0 is another routing
/// of the same problem, without that exception: an expert that every draw had could stay in a
/// cache.
[[nodiscard]] routed_tokens make_routing(arena& memory, problem const& p, data_mode data,
                                         index_t draw = 0);

/// The routing_plan that `plan` should make, written by hand: operations after it are tested
/// without it.
[[nodiscard]] routing_plan make_plan(arena& memory, problem const& p, routed_tokens const& routed);

}  // namespace moe64::cases
