#pragma once

#include "cpu/gemm/reference/dot.hpp"
#include "moe64/quant.hpp"

/// The tile that the reference GEMM works on: `row_tile` rows of x by `out_tile` outputs,
/// `depth_tile` columns at a time, everything as f32 in cache. Indices inside a tile are bounded by
/// these constants.
namespace moe64::cpu {

inline constexpr index_t row_tile = 32;
inline constexpr index_t out_tile = 16;
inline constexpr index_t depth_tile = 512;
inline constexpr index_t lane_steps = depth_tile / lane_count;
static_assert(depth_tile % lane_count == 0 && out_tile % 4 == 0);

struct x_tile {
  f32_lanes values[row_tile][lane_steps];
};
struct weight_tile {
  f32_lanes values[out_tile][lane_steps];
};
struct dot_tile {
  f32_lanes lanes[row_tile][out_tile];
};

/// acc(r, n) += x(r) * weights(n) over the first `steps` lane steps, for r in [0, rows) and all n.
void accumulate(dot_tile& acc, x_tile const& x, weight_tile const& weights, index_t rows,
                index_t steps);

/// acc[n] += left[n] * right over `steps` lane steps: one row of a weight gradient.
void accumulate_outer(weight_tile& acc, float const (&left)[out_tile],
                      f32_lanes const (&right)[lane_steps], index_t steps);

/// Fill the rest of a run of `count` numbers with zeros, up to whole lanes; the number of lane
/// steps it takes.
index_t pad_to_lanes(float* run, index_t count);

}  // namespace moe64::cpu
