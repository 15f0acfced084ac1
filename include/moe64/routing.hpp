#pragma once

#include "moe64/device.hpp"
#include "moe64/export.hpp"
#include "moe64/tensor.hpp"

namespace moe64 {

/// Which token goes to which expert, in expert order: the output of `plan` and the input of
/// everything after it. It lives on the device and is never read back by forward or backward.
///
/// A slot is one (token, k) choice, slot = token * top_k + k. A row is a kept slot's place in
/// expert order: rows are sorted by (expert, token, k), so the order does not depend on anything
/// but the ids. Invariants: expert_begin is non-decreasing from 0; rows of expert e are
/// [expert_begin[e], expert_begin[e + 1]); row_to_slot and slot_to_row are inverse on kept slots; a
/// skipped slot has slot_to_row -1.
struct routing_plan {
  index_t tokens = 0;
  index_t top_k = 0;
  index_t experts = 0;       ///< experts served by this plan: a sub-range under expert parallelism
  tensor_view expert_begin;  ///< [experts + 1] int64
  tensor_view row_to_slot;   ///< [tokens * top_k] int64; entries past the last row are unspecified
  tensor_view slot_to_row;   ///< [tokens * top_k] int64; -1: this slot has no row
  tensor_view slot_weight;   ///< [tokens * top_k] f32; 0 for a slot without a row
  tensor_view status;        ///< [plan_status::count] int64

  [[nodiscard]] constexpr bool present() const noexcept { return expert_begin.present(); }
  [[nodiscard]] constexpr index_t slots() const noexcept { return slot_to_row.extent[0]; }
  /// [1] int64: the number of rows, where it is known, on the device.
  [[nodiscard]] tensor_view live_rows() const {
    return expert_begin.slice(0, experts, experts + 1);
  }
};

/// What each entry of routing_plan::status counts.
struct plan_status {
  static constexpr index_t kept = 0;           ///< slots that have a row
  static constexpr index_t skipped = 1;        ///< sentinels: -1 or experts_total
  static constexpr index_t elsewhere = 2;      ///< legal experts outside this plan's sub-range
  static constexpr index_t dropped = 3;        ///< slots beyond an expert's capacity
  static constexpr index_t invalid = 4;        ///< other ids; on the CPU they are an error instead
  static constexpr index_t first_invalid = 5;  ///< the first such slot, or -1
  static constexpr index_t count = 6;
};

/// Exact bytes of a plan for these extents; errc::size_overflow when they do not fit.
[[nodiscard]] MOE64_API index_t plan_bytes(index_t tokens, index_t top_k, index_t experts);

/// A plan whose arrays lie in `memory` (plan_bytes() of it, aligned to workspace_alignment).
/// Nothing is written.
[[nodiscard]] MOE64_API routing_plan bind_plan(workspace memory, index_t tokens, index_t top_k,
                                               index_t experts);

}  // namespace moe64
