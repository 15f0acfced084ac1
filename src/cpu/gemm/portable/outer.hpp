// The outer form of a product: outputs lie along lanes, each has one running sum of fused
// multiply-adds over the depth in ascending order. Included once per target, after simd.hpp.

#if defined(MOE64_CPU_OUTER_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_OUTER_SIMD_HPP
#undef MOE64_CPU_OUTER_SIMD_HPP
#else
#define MOE64_CPU_OUTER_SIMD_HPP
#endif

#include "cpu/simd/lanes.hpp"

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

// Rows and vectors of outputs whose accumulators fit into the registers: 24 of 32, 12 of 16.
#if HWY_TARGET == HWY_AVX3
inline constexpr index_t outer_rows = 8;
inline constexpr index_t outer_vectors = 3;
#elif HWY_TARGET == HWY_SCALAR
inline constexpr index_t outer_rows = 1;
inline constexpr index_t outer_vectors = 4;
#else
inline constexpr index_t outer_rows = 4;
inline constexpr index_t outer_vectors = 3;
#endif
/// Outputs come in multiples of this at every width.
inline constexpr index_t lane_granule = 48;
static_assert(lane_granule % (outer_vectors * vector_length) == 0);

/// acc(r, n) += left(r, k) * right(k, n) over k in [0, depth). right and acc have unit stride
/// along n.
struct outer_block {
  float const* left;
  index_t left_row_stride, left_depth_stride;
  float const* right;
  index_t right_stride;
  index_t depth;
  float* acc;
  index_t acc_stride;
};

template <index_t Rows>
HWY_NOINLINE void add_outer(outer_block const& b) {
  f32_tag const tag;
  f32_vector acc[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(outer_vectors)];
  for (index_t r = 0; r < Rows; ++r) {
    for (index_t v = 0; v < outer_vectors; ++v) {
      acc[r][v] = hn::Load(tag, b.acc + r * b.acc_stride + v * vector_length);
    }
  }
  float const* right = b.right;
  float const* left = b.left;
  for (index_t k = 0; k < b.depth; ++k) {
    f32_vector numbers[static_cast<std::size_t>(outer_vectors)];
    for (index_t v = 0; v < outer_vectors; ++v) {
      numbers[v] = hn::Load(tag, right + v * vector_length);
    }
    for (index_t r = 0; r < Rows; ++r) {
      f32_vector const factor = hn::Set(tag, left[r * b.left_row_stride]);
      for (index_t v = 0; v < outer_vectors; ++v) {
        acc[r][v] = fused_multiply_add(factor, numbers[v], acc[r][v]);
      }
    }
    right += b.right_stride;
    left += b.left_depth_stride;
  }
  for (index_t r = 0; r < Rows; ++r) {
    for (index_t v = 0; v < outer_vectors; ++v) {
      hn::Store(acc[r][v], tag, b.acc + r * b.acc_stride + v * vector_length);
    }
  }
}

/// The same for any number of rows and of outputs that are a multiple of lane_granule.
inline void add_outer_tile(outer_block const& tile, index_t rows, index_t outs) {
  for (index_t n = 0; n < outs; n += outer_vectors * vector_length) {
    outer_block b = tile;
    b.right += n;
    auto const at = [&](index_t r) {
      b.left = tile.left + r * tile.left_row_stride;
      b.acc = tile.acc + r * tile.acc_stride + n;
      return b;
    };
    index_t r = 0;
    for (; r + outer_rows <= rows; r += outer_rows) add_outer<outer_rows>(at(r));
    if constexpr (outer_rows > 4) {
      if (r + 4 <= rows) {
        add_outer<4>(at(r));
        r += 4;
      }
    }
    if constexpr (outer_rows > 2) {
      if (r + 2 <= rows) {
        add_outer<2>(at(r));
        r += 2;
      }
    }
    if (r < rows) add_outer<1>(at(r));
  }
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
