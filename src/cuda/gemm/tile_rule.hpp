#pragma once

#include "core/verbose.hpp"
#include "moe64/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

/// Which tile a GEMM gets, and why: one table of rules for each family of kernels
/// (sm80/heuristics.cpp, sm90/heuristics.cpp). Every tile gives the same bits, so this is about
/// speed alone.
namespace moe64::cuda {

/// What the choice depends on: on the batch only by the mean number of rows of an expert.
struct gemm_extents {
  index_t rows;  ///< of y: of an expert on average, rounded up; of a weight gradient: of a part
  index_t k;     ///< summed over
  index_t n;     ///< outputs of all parts; of a weight gradient: columns
};

/// A tile for calls within these bounds, all of them included.
template <class Tile>
struct tile_rule {
  static constexpr index_t any = std::numeric_limits<index_t>::max();

  Tile tile;
  char const* why;
  index_t least_rows = 0, most_rows = any;
  index_t least_k = 0, most_k = any;
  index_t most_n = any;

  [[nodiscard]] constexpr bool takes(gemm_extents const& call) const {
    return least_rows <= call.rows && call.rows <= most_rows && least_k <= call.k &&
           call.k <= most_k && call.n <= most_n;
  }
};

/// The first rule that takes a call, of a tile for which fits(tile); the last one takes every call
/// and fits every device. MOE64_VERBOSE=2 prints it.
template <class Tile, class Fits>
[[nodiscard]] tile_rule<Tile> const& choose_tile(char const* operation,
                                                 std::span<tile_rule<Tile> const> rules,
                                                 gemm_extents const& call, moe64::device where,
                                                 Fits const& fits) {
  auto const found = std::find_if(rules.begin(), rules.end(), [&](tile_rule<Tile> const& rule) {
    return rule.takes(call) && fits(rule.tile);
  });
  tile_rule<Tile> const& rule = found == rules.end() ? rules.back() : *found;
  if (verbose_level() >= 2) {
    print_chosen(operation, where, name(rule.tile),
                 fmt::format("rows={} n={} k={}: {}", call.rows, call.n, call.k, rule.why));
  }
  return rule;
}

}  // namespace moe64::cuda
