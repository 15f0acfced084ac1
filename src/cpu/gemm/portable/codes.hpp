// rows.hpp with vectors: the same functions with the same bits, called `run` instead of `row`.
// Included once per target, after simd.hpp.

#if defined(MOE64_CPU_CODES_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_CODES_SIMD_HPP
#undef MOE64_CPU_CODES_SIMD_HPP
#else
#define MOE64_CPU_CODES_SIMD_HPP
#endif

#include "cpu/runtime/rows.hpp"
#include "cpu/simd/lanes.hpp"

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

template <class Number>
inline constexpr bool is_packed =
    std::is_same_v<Number, int4_number> || std::is_same_v<Number, fp4_number>;

/// visitor(Number{}) for the types that activations have.
template <class Visitor>
void visit_float(dtype type, Visitor const& visitor) {
  if (type == dtype::bf16) return visitor(bf16_number{});
  if (type == dtype::f16) return visitor(f16_number{});
  visitor(f32_number{});
}

// The loops take everything by value: what a closure refers to would be read again after each
// store.

template <class Number>
void load_numbers(void const* data, index_t first, index_t count, float* out) {
  index_t i = 0;
  if (is_packed<Number> && first % 2 != 0 && count > 0) out[i++] = Number::get(data, first);
  for (; i + vector_length <= count; i += vector_length) {
    hn::StoreU(lanes_of<Number>::load(data, first + i), f32_tag{}, out + i);
  }
  for (; i < count; ++i) out[i] = Number::get(data, first + i);
}

/// out[i] = element begin + i of the row, for i in [0, count); as load_row.
inline void load_run(row_view const& row, index_t begin, index_t count, float* out) {
  if (row.stride != 1) return load_row(row, begin, count, out);
  visit_number(row.type, [&](auto number) {
    load_numbers<decltype(number)>(row.data, row.offset + begin, count, out);
  });
}

template <class Number>
void store_numbers(void* data, index_t first, index_t count, float const* in) {
  index_t i = 0;
  if (is_packed<Number> && first % 2 != 0 && count > 0) Number::set(data, first, in[i++]);
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<Number, bf16_number>) {
    for (; i + 2 * vector_length <= count; i += 2 * vector_length) {
      lanes_of<Number>::store(hn::LoadU(f32_tag{}, in + i),
                              hn::LoadU(f32_tag{}, in + i + vector_length), data, first + i);
    }
  }
#endif
  for (; i + vector_length <= count; i += vector_length) {
    lanes_of<Number>::store(hn::LoadU(f32_tag{}, in + i), data, first + i);
  }
  for (; i < count; ++i) Number::set(data, first + i, in[i]);
}

/// Element begin + i of the row = in[i], rounded to the row's type; as store_row.
inline void store_run(row_view const& row, index_t begin, index_t count, float const* in) {
  if (row.stride != 1 || row.type == dtype::e8m0) return store_row(row, begin, count, in);
  visit_number(row.type, [&](auto number) {
    using number_type = decltype(number);
    if constexpr (!std::is_same_v<number_type, e8m0_number>) {
      store_numbers<number_type>(row.data, row.offset + begin, count, in);
    }
  });
}

/// Round each number to `type` and back; as round_row.
inline void round_run(dtype type, index_t count, float* values) {
  index_t i = 0;
  if (type == dtype::bf16) {
    for (; i + vector_length <= count; i += vector_length) {
      hn::StoreU(round_lanes_to_bf16(hn::LoadU(f32_tag{}, values + i)), f32_tag{}, values + i);
    }
  } else if (type == dtype::f16) {
    for (; i + vector_length <= count; i += vector_length) {
      hn::StoreU(round_lanes_to_f16(hn::LoadU(f32_tag{}, values + i)), f32_tag{}, values + i);
    }
  } else {
    return;
  }
  round_row(type, count - i, values + i);
}

/// values[i] *= factor.
inline void multiply_run(float* values, index_t count, float factor) {
  index_t i = 0;
  auto const factors = hn::Set(f32_tag{}, factor);
  for (; i + vector_length <= count; i += vector_length) {
    hn::StoreU(hn::Mul(hn::LoadU(f32_tag{}, values + i), factors), f32_tag{}, values + i);
  }
  for (; i < count; ++i) values[i] *= factor;
}

/// out[i] = scale_at of block (grid_row, grid_col + i), for i in [0, count).
inline void load_scales(quantized_view const& q, index_t expert, index_t grid_row, index_t grid_col,
                        index_t count, float* out) {
  load_run(row_of(q.scales(), q.scales_at(expert), grid_row), grid_col, count, out);
  if (!q.global().values.present()) return;
  float const global = load_number(q.global().values, expert);
  if (q.global().applied == global_scale::direction::multiply) {
    multiply_run(out, count, global);
  } else {
    for (index_t i = 0; i < count; ++i) out[i] /= global;
  }
}

/// out[i] = number (expert, row, begin + i): codes times their scales; as load_scaled_row.
inline void load_scaled_run(quantized_view const& q, index_t expert, index_t row, index_t begin,
                            index_t count, float* out) {
  load_run(row_of(q.values(), q.values_at(expert), row), begin, count, out);
  if (q.is_plain()) return;
  index_t const grid_row = row / q.layout().rows_per_scale(q.rows());
  index_t const block = q.layout().cols_per_scale(q.cols());
  // Scales are decoded as many at a time as `scales` holds.
  float scales[run_length];
  for (index_t at = begin; at < begin + count;) {
    index_t const first = at / block;
    index_t const last = (begin + count - 1) / block;
    index_t const blocks = std::min(run_length, last - first + 1);
    load_scales(q, expert, grid_row, first, blocks, scales);
    for (index_t b = 0; b < blocks; ++b) {
      index_t const end = std::min(begin + count, (first + b + 1) * block);
      multiply_run(out + (at - begin), end - at, scales[b]);
      at = end;
    }
  }
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
