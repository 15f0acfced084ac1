// Numbers divided by the scale of their block, as codes. Included once per target, after simd.hpp.

#if defined(MOE64_CPU_QUANTIZE_CODES_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_QUANTIZE_CODES_SIMD_HPP
#undef MOE64_CPU_QUANTIZE_CODES_SIMD_HPP
#else
#define MOE64_CPU_QUANTIZE_CODES_SIMD_HPP
#endif

#include "cpu/gemm/portable/codes.hpp"
#include "cpu/quantize/quantize.hpp"
#include "hwy/cache_control.h"

#include <cmath>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// Element begin + i of `out` = code of element first + i of `in` divided by the factor, the
/// quotient clamped to the largest code; zero where the factor is NaN. Any factor; a division for
/// each number.
template <class X>
void divide_run(void const* in, index_t first, index_t count, float factor, row_view const& out,
                index_t begin) {
  float quotients[run_length];
  float const limit = largest_code(out.type);
  bool const zero = std::isnan(factor);
  for (index_t at = 0; at < count; at += run_length) {
    index_t const size = std::min(run_length, count - at);
    for (index_t i = 0; i < size; ++i) {
      float const x = X::get(in, first + at + i);
      quotients[i] = zero ? 0.0F : std::clamp(x / factor, -limit, limit);
    }
    store_run(out, begin + at, size, quotients);
  }
}

#if HWY_TARGET != HWY_SCALAR

/// The quotient rounded to f32 without a division, from the rounded reciprocal of the divisor: the
/// remainder is exact and corrects the first guess (Markstein). Needs is_easy_factor; quotients
/// below 2^-20, which are zero in every code, may be wrong.
struct easy_divisor {
  f32_vector factor, reciprocal;

  explicit easy_divisor(float divisor)
      : factor(hn::Set(f32_tag{}, divisor)), reciprocal(hn::Set(f32_tag{}, 1.0F / divisor)) {}

  [[nodiscard]] HWY_INLINE f32_vector operator()(f32_vector dividend) const {
    f32_vector const guess = hn::Mul(dividend, reciprocal);
    f32_vector const remainder = hn::NegMulAdd(guess, factor, dividend);
    return hn::MulAdd(remainder, reciprocal, guess);
  }
};

/// Whether no step of easy_divisor can leave the normal numbers, except for quotients that are zero
/// as codes.
HWY_INLINE bool is_easy_factor(float factor) { return factor >= 0x1p-60F && factor <= 0x1p60F; }

template <class Number>
struct code_lanes;

template <float_format Format>
struct float_code_lanes {
  /// The sign is that of the dividend: easy_divisor loses that of zero.
  static HWY_INLINE i32_vector of(f32_vector dividend, easy_divisor const& divide) {
    i32_vector const sign = hn::And(hn::ShiftRight<32 - Format.width()>(bits_of(dividend)),
                                    all(1U << (Format.width() - 1)));
    return hn::Or(magnitude_codes<Format>(divide(hn::Abs(dividend))), sign);
  }
};
template <int Limit>
struct integer_code_lanes {
  static HWY_INLINE i32_vector of(f32_vector dividend, easy_divisor const& divide) {
    i32_vector const rounded = hn::NearestInt(divide(dividend));
    i32_tag const tag;
    return hn::Max(hn::Min(rounded, hn::Set(tag, Limit)), hn::Set(tag, -Limit));
  }
};

template <>
struct code_lanes<e4m3_number> : float_code_lanes<e4m3_format> {
  static HWY_INLINE void store(i32_vector codes, void* data, index_t i) {
    store_bytes(codes, data, i);
  }
};
template <>
struct code_lanes<e5m2_number> : float_code_lanes<e5m2_format> {
  static HWY_INLINE void store(i32_vector codes, void* data, index_t i) {
    store_bytes(codes, data, i);
  }
};
template <>
struct code_lanes<fp4_number> : float_code_lanes<e2m1_format> {
  static HWY_INLINE void store(i32_vector codes, void* data, index_t i) {
    store_nibbles(codes, data, i);
  }
};
template <>
struct code_lanes<int8_number> : integer_code_lanes<127> {
  static HWY_INLINE void store(i32_vector codes, void* data, index_t i) {
    hn::RebindToSigned<u8_tag> const i8_tag;
    hn::StoreU(hn::DemoteTo(i8_tag, codes), i8_tag, at<std::int8_t>(data, i));
  }
};
template <>
struct code_lanes<int4_number> : integer_code_lanes<7> {
  static HWY_INLINE void store(i32_vector codes, void* data, index_t i) {
    store_nibbles(hn::And(codes, all(0xf)), data, i);
  }
};

#endif

#if HWY_TARGET != HWY_SCALAR

template <class X>
inline constexpr index_t number_bytes = std::is_same_v<X, f32_number> ? 4 : 2;

/// Four vectors of bf16 to bytes: even and odd numbers apart until their codes meet again.
template <class Number>
HWY_INLINE void quantize_bf16_to_bytes(void const* in, easy_divisor const& divide, void* out) {
  hn::Repartition<std::uint16_t, i32_tag> const words;
  auto const two_vectors = [&](index_t i) HWY_ATTR {
    lane_pair const x = load_pair<bf16_number>(in, i);
    i32_vector const even = hn::And(code_lanes<Number>::of(x.first, divide), all(0xff));
    i32_vector const odd = hn::ShiftLeft<8>(code_lanes<Number>::of(x.second, divide));
    return hn::BitCast(words, hn::Or(even, odd));
  };
  auto const codes = hn::ConcatEven(words, two_vectors(2 * vector_length), two_vectors(0));
  hn::StoreU(codes, words, static_cast<std::uint16_t*>(out));
}

#endif

/// divide_run with vectors, `Number` the type of `out`. Asks for what lies `prefetch` elements
/// behind.
template <class X, class Number>
void quantize_run(void const* in, index_t first, index_t count, float factor, row_view const& out,
                  index_t begin, index_t prefetch) {
  index_t i = 0;
  static_cast<void>(prefetch);
#if HWY_TARGET != HWY_SCALAR
  index_t const to = out.offset + begin;
  bool const whole_bytes = !is_packed<Number> || to % 2 == 0;
  if (out.stride == 1 && whole_bytes && is_easy_factor(factor)) {
    easy_divisor const divide(factor);
    if constexpr (std::is_same_v<X, bf16_number> && !is_packed<Number>) {
      for (; i + 4 * vector_length <= count; i += 4 * vector_length) {
        hwy::Prefetch(at<std::uint16_t>(in, first + i + prefetch));
        hwy::Prefetch(at<std::uint16_t>(in, first + i + prefetch + 2 * vector_length));
        quantize_bf16_to_bytes<Number>(at<std::uint16_t>(in, first + i), divide,
                                       at<std::uint8_t>(out.data, to + i));
      }
    }
    for (; i + vector_length <= count; i += vector_length) {
      hwy::Prefetch(at<std::uint8_t>(in, (first + i + prefetch) * number_bytes<X>));
      auto const codes = code_lanes<Number>::of(lanes_of<X>::load(in, first + i), divide);
      code_lanes<Number>::store(codes, out.data, to + i);
    }
  }
#endif
  if (i < count) divide_run<X>(in, first + i, count - i, factor, out, begin + i);
}

/// The largest magnitude among numbers of type X, as bits: infinity and NaN are larger than all
/// others.
#if HWY_TARGET == HWY_SCALAR

template <class X>
class largest_of {
 public:
  void clear() { bits_ = 0; }
  void add(void const* in, index_t first, index_t count, index_t) {
    for (index_t i = first; i < first + count; ++i) {
      bits_ = std::max(bits_, std::bit_cast<std::uint32_t>(X::get(in, i)) & 0x7fffffffU);
    }
  }
  [[nodiscard]] magnitude size() const {
    return bits_ < 0x7f800000U ? magnitude{std::bit_cast<float>(bits_), true}
                               : magnitude{0.0F, false};
  }

 private:
  std::uint32_t bits_;
};

#else

template <class X>
class largest_of {
 public:
  /// First of all: an array of these is longer than the part that is used.
  void clear() { bits_ = hn::Zero(i32_tag{}); }

  /// Of elements [first, first + count); asks for what lies `prefetch` elements behind them.
  void add(void const* in, index_t first, index_t count, index_t prefetch) {
    using word = std::conditional_t<std::is_same_v<X, f32_number>, std::int32_t, std::int16_t>;
    hn::Repartition<word, i32_tag> const tag;
    constexpr index_t length = hn::MaxLanes(tag);
    auto const mask = hn::Set(tag, std::numeric_limits<word>::max());
    auto const* const words = static_cast<word const*>(in) + first;
    auto largest = hn::BitCast(tag, bits_);
    index_t i = 0;
    for (; i + length <= count; i += length) {
      hwy::Prefetch(words + i + prefetch);
      largest = hn::Max(largest, hn::And(hn::LoadU(tag, words + i), mask));
    }
    if (i < count) {
      word rest[length] = {};
      for (index_t lane = 0; i + lane < count; ++lane) rest[lane] = words[i + lane];
      largest = hn::Max(largest, hn::And(hn::LoadU(tag, rest), mask));
    }
    bits_ = hn::BitCast(i32_tag{}, largest);
  }

  [[nodiscard]] magnitude size() const {
    i32_tag const tag;
    std::int32_t largest = 0;
    if constexpr (std::is_same_v<X, f32_number>) {
      largest = hn::GetLane(hn::MaxOfLanes(tag, bits_));
    } else {
      auto const upper = hn::ShiftRight<16>(bits_);
      auto const lower = hn::And(bits_, hn::Set(tag, 0xffff));
      largest = hn::GetLane(hn::MaxOfLanes(tag, hn::Max(upper, lower)));
    }
    float const value = X::get(&largest, 0);
    return std::isfinite(value) ? magnitude{value, true} : magnitude{0.0F, false};
  }

 private:
  i32_vector bits_;
};

#endif

/// visitor(Number{}) for the types that quantize writes.
template <class Visitor>
void visit_code(dtype type, Visitor const& visitor) {
  switch (type) {
    case dtype::e4m3:
      return visitor(e4m3_number{});
    case dtype::e5m2:
      return visitor(e5m2_number{});
    case dtype::int8:
      return visitor(int8_number{});
    case dtype::int4:
      return visitor(int4_number{});
    case dtype::fp4:
      return visitor(fp4_number{});
    default:
      fail(errc::internal, "[quantize] {} is not a code", name(type));
  }
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
