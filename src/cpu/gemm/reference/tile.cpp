#include "cpu/gemm/reference/tile.hpp"

// The same source for several vector widths, chosen when the library is loaded. Every width gives
// the same bits, because the order of additions is fixed in dot.hpp. Sanitizers start too late for
// load-time choices.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOE64_EVERY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MOE64_EVERY_WIDTH
#endif

namespace moe64::cpu {

MOE64_EVERY_WIDTH
void accumulate(dot_tile& acc, x_tile const& x, weight_tile const& weights, index_t rows,
                index_t steps) {
  for (index_t r = 0; r < rows; ++r) {
    for (index_t n = 0; n < out_tile; n += 4) {
      f32_lanes s0 = acc.lanes[r][n];
      f32_lanes s1 = acc.lanes[r][n + 1];
      f32_lanes s2 = acc.lanes[r][n + 2];
      f32_lanes s3 = acc.lanes[r][n + 3];
      for (index_t k = 0; k < steps; ++k) {
        f32_lanes const a = x.values[r][k];
        s0 += a * weights.values[n][k];
        s1 += a * weights.values[n + 1][k];
        s2 += a * weights.values[n + 2][k];
        s3 += a * weights.values[n + 3][k];
      }
      acc.lanes[r][n] = s0;
      acc.lanes[r][n + 1] = s1;
      acc.lanes[r][n + 2] = s2;
      acc.lanes[r][n + 3] = s3;
    }
  }
}

MOE64_EVERY_WIDTH
void accumulate_outer(weight_tile& acc, float const (&left)[out_tile],
                      f32_lanes const (&right)[lane_steps], index_t steps) {
  for (index_t n = 0; n < out_tile; ++n) {
    for (index_t k = 0; k < steps; ++k) acc.values[n][k] += left[n] * right[k];
  }
}

index_t pad_to_lanes(float* run, index_t count) {
  index_t const padded = ceil_div(count, lane_count) * lane_count;
  for (index_t i = count; i < padded; ++i) run[i] = 0.0F;
  return padded / lane_count;
}

}  // namespace moe64::cpu
