// Weights of one product as f32 tiles: codes times scales, rounded to the type of x, dequantised
// in registers. Included once per target, after simd.hpp.

#if defined(MOE64_CPU_WEIGHTS_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_WEIGHTS_SIMD_HPP
#undef MOE64_CPU_WEIGHTS_SIMD_HPP
#else
#define MOE64_CPU_WEIGHTS_SIMD_HPP
#endif

#include "cpu/gemm/portable/codes.hpp"
#include "cpu/runtime/expert_ranges.hpp"
#include "cpu/simd/float8_table.hpp"

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// Rows and columns of a stack of one expert, or of one part of it.
struct patch {
  index_t expert, row_begin, rows, col_begin, cols;
};

/// Where a patch goes: [rows, cols] f32, rows `stride` apart.
struct patch_target {
  float* values;
  index_t stride;
};

struct round_not {
  static HWY_INLINE f32_vector vector(f32_vector numbers) { return numbers; }
  static HWY_INLINE f32_vector finite(f32_vector numbers) { return numbers; }
  static float number(float value) { return value; }
};
struct round_bf16 {
  static HWY_INLINE f32_vector vector(f32_vector numbers) { return round_lanes_to_bf16(numbers); }
  static HWY_INLINE f32_vector finite(f32_vector numbers) {
#if HWY_TARGET == HWY_SCALAR
    return vector(numbers);
#else
    i32_vector const bits = bits_of(numbers);
    i32_vector const odd = hn::And(hn::ShiftRight<16>(bits), all(1));
    return of_bits(hn::And(hn::Add(hn::Add(bits, all(0x7fff)), odd), all(0xffff0000U)));
#endif
  }
  static float number(float value) { return decode_bf16(encode_bf16(value)); }
};
struct round_f16 {
  static HWY_INLINE f32_vector vector(f32_vector numbers) { return round_lanes_to_f16(numbers); }
  static HWY_INLINE f32_vector finite(f32_vector numbers) { return vector(numbers); }
  static float number(float value) {
    return decode_float<f16_format>(encode_float<f16_format>(value));
  }
};

#if HWY_TARGET != HWY_SCALAR

/// load_block for e4m3 without NaN and an ordinary scale: false when it met NaN. Twice as many
/// codes at a time as f32 lanes, made f16 of 1/256 of the number; 256 goes to the scale, exactly.
template <class Round>
HWY_INLINE bool load_finite_e4m3(std::uint8_t const* codes, index_t count, float scale,
                                 float* out) {
  hn::ScalableTag<std::uint16_t> const wide;
  hn::RebindToSigned<decltype(wide)> const wide_signed;
  hn::Rebind<std::uint8_t, decltype(wide)> const bytes;
  f32_vector const scales = hn::Set(f32_tag{}, scale * 256.0F);
  auto const top = hn::Set(wide, 0x3f80);
  auto nan = hn::Zero(wide);
  for (index_t i = 0; i < count; i += 2 * vector_length) {
    auto const upper = hn::ShiftLeft<8>(hn::PromoteTo(wide, hn::LoadU(bytes, codes + i)));
    auto const shifted = hn::BitCast(wide, hn::ShiftRight<1>(hn::BitCast(wide_signed, upper)));
    auto const half = hn::And(shifted, hn::Set(wide, 0xbf80));
    nan = hn::Or(nan, hn::VecFromMask(wide, hn::Eq(hn::And(half, top), top)));
    auto const low = of_f16_codes(hn::LowerHalf(half));
    auto const high = of_f16_codes(hn::UpperHalf(u16_tag{}, half));
    hn::StoreU(Round::finite(hn::Mul(low, scales)), f32_tag{}, out + i);
    hn::StoreU(Round::finite(hn::Mul(high, scales)), f32_tag{}, out + i + vector_length);
  }
  return hn::AllTrue(wide, hn::Eq(nan, hn::Zero(wide)));
}

#endif

/// `count` codes from element `first` on, times one scale. `first` is even for packed types.
template <class Number, class Round>
HWY_INLINE void load_block(void const* data, index_t first, index_t count, float scale,
                           float* out) {
  index_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<Number, e4m3_number>) {
    index_t const whole = count / (2 * vector_length) * (2 * vector_length);
    if (std::abs(scale) < 0x1p100F &&
        load_finite_e4m3<Round>(at<std::uint8_t>(data, first), whole, scale, out)) {
      i = whole;
    }
  }
#endif
  f32_vector const scales = hn::Set(f32_tag{}, scale);
  for (; i + vector_length <= count; i += vector_length) {
    f32_vector const numbers = hn::Mul(lanes_of<Number>::load(data, first + i), scales);
    hn::StoreU(Round::vector(numbers), f32_tag{}, out + i);
  }
  for (; i < count; ++i) out[i] = Round::number(Number::get(data, first + i) * scale);
}

/// Codes from which on a table of their numbers pays.
inline constexpr index_t table_pays = 1024;

/// Rows of a patch that share their scales, columns of one scale. Codes that are read `ahead`
/// elements later are asked for.
template <class Number, class Round>
void load_scale_block(quantized_view const& q, patch const& at, float scale, index_t ahead,
                      patch_target const& to) {
  index_t c = 0;
#if HWY_TARGET == HWY_AVX3
  constexpr bool float8 =
      std::is_same_v<Number, e4m3_number> || std::is_same_v<Number, e5m2_number>;
  if constexpr (float8 && std::is_same_v<Round, round_bf16>) {
    if (at.rows * at.cols >= table_pays) {
      c = at.cols / 32 * 32;
      auto const table = bf16_table::of<Number>(scale);
      for (index_t r = 0; r < at.rows; ++r) {
        index_t const first =
            offset_of(q.values(), q.values_at(at.expert), at.row_begin + r, at.col_begin);
        auto const* const codes = HWY_NAMESPACE::at<std::uint8_t>(q.values().data, first);
        for (index_t i = 0; i < c + 63; i += 64) {
          _mm_prefetch(codes + ahead + std::min(i, c - 1), _MM_HINT_T0);
        }
        for (index_t i = 0; i < c; i += 32) {
          two_vectors const numbers = look_up(table, codes + i);
          hn::StoreU(numbers.low, f32_tag{}, to.values + r * to.stride + i);
          hn::StoreU(numbers.high, f32_tag{}, to.values + r * to.stride + i + 16);
        }
      }
    }
  }
#endif
  static_cast<void>(ahead);
  for (index_t r = 0; c < at.cols && r < at.rows; ++r) {
    index_t const first =
        offset_of(q.values(), q.values_at(at.expert), at.row_begin + r, at.col_begin);
    load_block<Number, Round>(q.values().data, first + c, at.cols - c, scale,
                              to.values + r * to.stride + c);
  }
}

/// Rows with unit stride. A row of the patch uses at most run_length scales, and packed blocks
/// start at whole bytes.
template <class Number, class Round>
void load_patch(quantized_view const& q, patch const& at, patch_target const& to) {
  index_t const rows_per_scale = q.layout().rows_per_scale(q.rows());
  index_t const block = q.layout().cols_per_scale(q.cols());
  index_t const first_block = at.col_begin / block;
  index_t const blocks = (at.col_begin + at.cols - 1) / block - first_block + 1;
  // Blocks follow each other along the rows, or patches along the columns.
  index_t const ahead = blocks > 2 ? 3 * block : 16 * q.values().stride[1];
  float scales[run_length];
  for (index_t r = 0; r < at.rows;) {
    index_t const grid_row = (at.row_begin + r) / rows_per_scale;
    index_t const rows =
        std::min(at.rows - r, (grid_row + 1) * rows_per_scale - (at.row_begin + r));
    load_scales(q, at.expert, grid_row, first_block, blocks, scales);
    for (index_t b = 0, c = 0; b < blocks; ++b) {
      index_t const end = std::min(at.cols, (first_block + b + 1) * block - at.col_begin);
      load_scale_block<Number, Round>(
          q, {at.expert, at.row_begin + r, rows, at.col_begin + c, end - c}, scales[b], ahead,
          {to.values + r * to.stride + c, to.stride});
      c = end;
    }
    r += rows;
  }
}

template <class Round>
void load_patch_of_any_type(quantized_view const& q, patch const& at, patch_target const& to) {
  visit_number(q.type(), [&](auto number) {
    using number_type = decltype(number);
    if constexpr (!std::is_same_v<number_type, e8m0_number>) {
      load_patch<number_type, Round>(q, at, to);
    }
  });
}

/// Whether load_patch can read it: what it cannot is read run by run.
inline bool is_plain_run_of_blocks(quantized_view const& q, patch const& at) {
  tensor_view const& values = q.values();
  if (values.stride[2] != 1) return false;
  index_t const block = q.layout().cols_per_scale(q.cols());
  index_t const blocks = (at.col_begin + at.cols - 1) / block - at.col_begin / block + 1;
  if (blocks > run_length) return false;
  if (bits(q.type()) == 8) return true;
  auto const even = [](index_t i) { return i % 2 == 0; };
  return even(at.col_begin) && even(values.stride[0]) && even(values.stride[1]) && even(block);
}

/// run[i] *= scale of element (row, begin + i).
inline void scale_run(quantized_view const& q, index_t expert, index_t row, index_t begin,
                      index_t count, float* run) {
  index_t const grid_row = row / q.layout().rows_per_scale(q.rows());
  index_t const block = q.layout().cols_per_scale(q.cols());
  for (index_t c = 0; c < count;) {
    index_t const grid_col = (begin + c) / block;
    index_t const end = std::min(count, (grid_col + 1) * block - begin);
    multiply_run(run + c, end - c, scale_at(q, expert, grid_row, grid_col));
    c = end;
  }
}

/// A stack stored [experts, in, out]: codes are read along memory, then scaled row by row.
inline void load_columns(quantized_view const& q, patch const& at, patch_target const& to) {
  float run[run_length];
  for (index_t r = 0; r < at.rows; r += run_length) {
    index_t const rows = std::min(run_length, at.rows - r);
    for (index_t c = 0; c < at.cols; ++c) {
      row_view const column = {q.values().data,
                               offset_of(q.values(), q.values_at(at.expert), 0, at.col_begin + c),
                               q.values().stride[1], q.type()};
      load_run(column, at.row_begin + r, rows, run);
      for (index_t i = 0; i < rows; ++i) to.values[(r + i) * to.stride + c] = run[i];
    }
  }
}

/// One part's numbers, rounded to `as`.
inline void load_part(quantized_view const& q, dtype as, patch const& at, patch_target const& to) {
  if (q.is_plain() && q.values().stride[2] == 1) {
    for (index_t r = 0; r < at.rows; ++r) {
      load_run(row_of(q.values(), q.values_at(at.expert), at.row_begin + r), at.col_begin, at.cols,
               to.values + r * to.stride);
    }
    return;
  }
  if (!q.is_plain() && is_plain_run_of_blocks(q, at)) {
    if (as == dtype::bf16) return load_patch_of_any_type<round_bf16>(q, at, to);
    if (as == dtype::f16) return load_patch_of_any_type<round_f16>(q, at, to);
    return load_patch_of_any_type<round_not>(q, at, to);
  }
  bool const along_rows = q.values().stride[2] == 1;
  if (!along_rows) load_columns(q, at, to);
  if (q.is_plain()) return;
  for (index_t r = 0; r < at.rows; ++r) {
    float* const run = to.values + r * to.stride;
    if (along_rows) {
      load_scaled_run(q, at.expert, at.row_begin + r, at.col_begin, at.cols, run);
    } else {
      scale_run(q, at.expert, at.row_begin + r, at.col_begin, at.cols, run);
    }
    round_run(as, at.cols, run);
  }
}

/// Numbers of a patch of the stack, as the product reads them.
inline void load_weights(product const& p, patch const& at, patch_target const& to) {
  for (int part = 0; part < p.weights.parts(); ++part) {
    index_t const first = part * p.weights.part_rows();
    index_t const begin = std::max(at.row_begin, first);
    index_t const end = std::min(at.row_begin + at.rows, first + p.weights.part_rows());
    if (begin >= end || at.cols <= 0) continue;
    load_part(p.weights.part(part), p.weights_as,
              {at.expert, begin - first, end - begin, at.col_begin, at.cols},
              {to.values + (begin - at.row_begin) * to.stride, to.stride});
  }
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
