// The dot form of a product: sums of 16 lanes, element i of a run in lane i % 16, every lane fused
// multiply-adds in ascending order, the lanes folded in halves at the end (dot.hpp). A micro-tile
// of rows by outputs is kept in registers; the order of additions of one output does not depend on
// it. Included once per target, after simd.hpp.

#if defined(MOE64_CPU_DOT_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_DOT_SIMD_HPP
#undef MOE64_CPU_DOT_SIMD_HPP
#else
#define MOE64_CPU_DOT_SIMD_HPP
#endif

#include "cpu/gemm/reference/dot.hpp"
#include "cpu/simd/lanes.hpp"

#include <cstddef>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// Vectors that make up 16 lanes.
inline constexpr index_t pieces = lane_count / vector_length;

// Rows and outputs whose accumulators fit into the registers, one vector each: 24 of 32, 12 of 16.
inline constexpr index_t dot_rows = 4;
#if HWY_TARGET == HWY_AVX3
inline constexpr index_t dot_outs = 6;
#else
inline constexpr index_t dot_outs = 3;
#endif
/// Outputs come in multiples of this at every width.
inline constexpr index_t out_granule = 6;
static_assert(out_granule % dot_outs == 0);

/// Where the operands of a micro-tile lie: rows of x, of any number type, and of weights as f32,
/// both of `steps` * 16 numbers, and 16 lanes for each (row, output).
struct micro_tile {
  void const* x;
  index_t x_offset, x_stride;
  float const* weights;
  index_t weight_stride;
  index_t steps;
  float* lanes;
  index_t lane_stride;  ///< from row to row

  [[nodiscard]] HWY_INLINE float* lane(index_t r, index_t n, index_t p) const {
    return lanes + r * lane_stride + n * lane_count + p * vector_length;
  }
};

template <index_t Rows>
using dot_accumulators =
    f32_vector[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(dot_outs)];

/// Products of piece p of the lanes.
template <class X, index_t Rows>
HWY_INLINE void add_products(micro_tile const& b, index_t p, dot_accumulators<Rows>& acc) {
  index_t const end = b.steps * lane_count;
  for (index_t k = p * vector_length; k < end; k += lane_count) {
    f32_vector x[static_cast<std::size_t>(Rows)];
    for (index_t r = 0; r < Rows; ++r) {
      x[r] = lanes_of<X>::load(b.x, b.x_offset + r * b.x_stride + k);
    }
    for (index_t n = 0; n < dot_outs; ++n) {
      f32_vector const weight = hn::Load(f32_tag{}, b.weights + n * b.weight_stride + k);
      for (index_t r = 0; r < Rows; ++r) {
        acc[r][n] = fused_multiply_add(x[r], weight, acc[r][n]);
      }
    }
  }
}

/// lanes += products of the micro-tile.
template <class X, index_t Rows>
HWY_NOINLINE void add_dots(micro_tile const& b) {
  for (index_t p = 0; p < pieces; ++p) {
    dot_accumulators<Rows> acc;
    for (index_t r = 0; r < Rows; ++r) {
      for (index_t n = 0; n < dot_outs; ++n) acc[r][n] = hn::Load(f32_tag{}, b.lane(r, n, p));
    }
    add_products<X, Rows>(b, p, acc);
    for (index_t r = 0; r < Rows; ++r) {
      for (index_t n = 0; n < dot_outs; ++n) hn::Store(acc[r][n], f32_tag{}, b.lane(r, n, p));
    }
  }
}

/// lanes += products of the micro-tile times x_scale(row) * weight_scale(output), the products
/// summed first.
template <index_t Rows>
HWY_NOINLINE void add_scaled_dots(micro_tile const& b, float const* x_scale,
                                  float const* weight_scale) {
  for (index_t p = 0; p < pieces; ++p) {
    dot_accumulators<Rows> acc;
    for (index_t r = 0; r < Rows; ++r) {
      for (index_t n = 0; n < dot_outs; ++n) acc[r][n] = hn::Zero(f32_tag{});
    }
    add_products<f32_number, Rows>(b, p, acc);
    for (index_t r = 0; r < Rows; ++r) {
      for (index_t n = 0; n < dot_outs; ++n) {
        f32_vector const scale = hn::Set(f32_tag{}, x_scale[r] * weight_scale[n]);
        float* const total = b.lane(r, n, p);
        hn::Store(fused_multiply_add(acc[r][n], scale, hn::Load(f32_tag{}, total)), f32_tag{},
                  total);
      }
    }
  }
}

/// call(row, integral_constant rows in the panel) over `rows` rows, the largest panels first.
template <class Call>
HWY_INLINE void for_each_row_panel(index_t rows, Call const& call) {
  index_t r = 0;
  for (; r + dot_rows <= rows; r += dot_rows) {
    call(r, std::integral_constant<index_t, dot_rows>{});
  }
  switch (rows - r) {
    case 1:
      return call(r, std::integral_constant<index_t, 1>{});
    case 2:
      return call(r, std::integral_constant<index_t, 2>{});
    case 3:
      return call(r, std::integral_constant<index_t, 3>{});
    default:
      return;
  }
}

#if HWY_TARGET == HWY_SCALAR

/// out[i] = fold of 16 lanes at lanes + 16 i.
inline void fold_lanes(float const* lanes, index_t count, float* out) {
  for (index_t i = 0; i < count; ++i) {
    f32_lanes one;
    std::memcpy(&one, lanes + i * lane_count, sizeof(one));
    out[i] = fold(one);
  }
}

#else

using f32x4_tag = hn::FixedTag<float, 4>;
using f32x8_tag = hn::FixedTag<float, 8>;

HWY_INLINE hn::Vec<f32x4_tag> fold_to_4(float const* lanes) {
  f32x8_tag const d8;
  auto const eight = hn::Add(hn::Load(d8, lanes), hn::Load(d8, lanes + 8));
  return hn::Add(hn::LowerHalf(f32x4_tag{}, eight), hn::UpperHalf(f32x4_tag{}, eight));
}

inline void fold_lanes(float const* lanes, index_t count, float* out) {
  f32x4_tag const d;
  for (index_t i = 0; i + 2 <= count; i += 2) {
    auto const a = fold_to_4(lanes + i * lane_count);
    auto const b = fold_to_4(lanes + (i + 1) * lane_count);
    auto const pairs = hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
    auto const folded = hn::Add(pairs, hn::Shuffle2301(pairs));
    hn::StoreU(hn::LowerHalf(hn::ConcatEven(d, folded, folded)), hn::Half<f32x4_tag>{}, out + i);
  }
}

#endif

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
