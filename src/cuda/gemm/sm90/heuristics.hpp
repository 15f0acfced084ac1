#pragma once

#include "cuda/kernels/gemm/sm90/gemm.hpp"
#include "moe64/device.hpp"

#include <limits>
#include <span>

/// Which tile a grouped GEMM of sm_90a gets, and why: one table for each family of kernels. Every
/// tile gives the same bits, so this is about speed alone. The thresholds were measured on an H200
/// (docs/hopper.md, docs/experiments).
namespace moe64::cuda::sm90 {

/// What the choice depends on: never on the batch but by the mean number of rows of an expert.
struct gemm_extents {
  index_t rows_per_expert;  ///< on average, rounded up
  index_t k;                ///< summed over
  index_t n;                ///< outputs of all parts
};

/// A tile for calls within these bounds, all of them included.
struct tile_rule {
  static constexpr index_t any = std::numeric_limits<index_t>::max();

  tile_shape tile;
  char const* why;
  index_t least_rows = 0, most_rows = any;  ///< rows per expert
  index_t least_k = 0, most_k = any;
  index_t most_n = any;

  [[nodiscard]] constexpr bool takes(gemm_extents const& call) const {
    return least_rows <= call.rows_per_expert && call.rows_per_expert <= most_rows &&
           least_k <= call.k && call.k <= most_k && call.n <= most_n;
  }
};

/// The tables: of the rules that take a call the first one counts, and the last takes every call.
[[nodiscard]] std::span<tile_rule const> w8a8_tiles();
[[nodiscard]] std::span<tile_rule const> bf16_tiles();
[[nodiscard]] std::span<tile_rule const> w8a16_tiles();
/// W4A16, and W8A16 with transposed weights (dx).
[[nodiscard]] std::span<tile_rule const> small_and_large_tiles();

/// The rule that a call falls under; MOE64_VERBOSE=2 prints it.
[[nodiscard]] tile_rule const& choose_tile(std::span<tile_rule const> rules,
                                           gemm_extents const& call, moe64::device where);

}  // namespace moe64::cuda::sm90
