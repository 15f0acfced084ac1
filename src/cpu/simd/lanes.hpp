// Vectors of numbers: how the f32 lanes of one vector are read from and written to an array of each
// type, bit for bit as core/number.hpp does it one by one. Included once per target, after
// simd.hpp.

#if defined(MOE64_CPU_LANES_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_LANES_SIMD_HPP
#undef MOE64_CPU_LANES_SIMD_HPP
#else
#define MOE64_CPU_LANES_SIMD_HPP
#endif

#include "core/number.hpp"
#include "cpu/simd/simd.hpp"

#include <bit>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

using f32_tag = hn::ScalableTag<float>;
using f32_vector = hn::Vec<f32_tag>;
using i32_tag = hn::RebindToSigned<f32_tag>;
using i32_vector = hn::Vec<i32_tag>;
inline constexpr index_t vector_length = hn::MaxLanes(f32_tag{});

/// The f32 lanes of element i and those behind it; `i` is even for packed types.
template <class Number>
struct lanes_of;

/// Two vectors of lanes, in an order that only load_pair and store_pair of one type agree on: for
/// bf16 the even and the odd elements, which takes no shuffles.
struct lane_pair {
  f32_vector first, second;
};
template <class Number>
HWY_INLINE lane_pair load_pair(void const* data, index_t i) {
  return {lanes_of<Number>::load(data, i), lanes_of<Number>::load(data, i + vector_length)};
}
template <class Number>
HWY_INLINE void store_pair(lane_pair numbers, void* data, index_t i) {
  lanes_of<Number>::store(numbers.first, data, i);
  lanes_of<Number>::store(numbers.second, data, i + vector_length);
}

#if HWY_TARGET == HWY_SCALAR

template <class Number>
struct lanes_of {
  static f32_vector load(void const* data, index_t i) {
    return hn::Set(f32_tag{}, Number::get(data, i));
  }
  static void store(f32_vector numbers, void* data, index_t i) {
    Number::set(data, i, hn::GetLane(numbers));
  }
};

HWY_INLINE f32_vector round_lanes_to_bf16(f32_vector numbers) {
  return hn::Set(f32_tag{}, decode_bf16(encode_bf16(hn::GetLane(numbers))));
}
HWY_INLINE f32_vector round_lanes_to_f16(f32_vector numbers) {
  auto const code = encode_float<f16_format>(hn::GetLane(numbers));
  return hn::Set(f32_tag{}, decode_float<f16_format>(code));
}

#else

using u8_tag = hn::Rebind<std::uint8_t, f32_tag>;
using u16_tag = hn::Rebind<std::uint16_t, f32_tag>;
using f16_tag = hn::Rebind<hwy::float16_t, f32_tag>;
using u16_vector = hn::Vec<u16_tag>;

template <class Word>
HWY_INLINE Word const* at(void const* data, index_t i) {
  return static_cast<Word const*>(data) + i;
}
template <class Word>
HWY_INLINE Word* at(void* data, index_t i) {
  return static_cast<Word*>(data) + i;
}

HWY_INLINE i32_vector bits_of(f32_vector numbers) { return hn::BitCast(i32_tag{}, numbers); }
HWY_INLINE f32_vector of_bits(i32_vector bits) { return hn::BitCast(f32_tag{}, bits); }
HWY_INLINE i32_vector all(std::uint32_t bits) {
  return hn::Set(i32_tag{}, std::bit_cast<std::int32_t>(bits));
}

/// Where `unusual` is set: NaN of the same sign, without a payload.
template <class Mask>
HWY_INLINE f32_vector plain_nan_where(Mask unusual, f32_vector numbers) {
  return hn::IfThenElse(unusual, hn::CopySign(of_bits(all(0x7fc00000U)), numbers), numbers);
}

template <>
struct lanes_of<f32_number> {
  static HWY_INLINE f32_vector load(void const* data, index_t i) {
    return hn::LoadU(f32_tag{}, at<float>(data, i));
  }
  static HWY_INLINE void store(f32_vector numbers, void* data, index_t i) {
    hn::StoreU(numbers, f32_tag{}, at<float>(data, i));
  }
};

/// The 16 upper bits of each lane after rounding; NaN keeps sign and upper payload.
HWY_INLINE i32_vector bf16_codes(f32_vector numbers) {
  i32_vector const bits = bits_of(numbers);
  i32_vector const odd = hn::And(hn::ShiftRight<16>(bits), all(1));
  i32_vector const rounded = hn::Add(hn::Add(bits, all(0x7fff)), odd);
  auto const is_nan = hn::RebindMask(i32_tag{}, hn::IsNaN(numbers));
  return hn::IfThenElse(is_nan, hn::Or(bits, all(0x400000)), rounded);
}

HWY_INLINE f32_vector round_lanes_to_bf16(f32_vector numbers) {
  return of_bits(hn::And(bf16_codes(numbers), all(0xffff0000U)));
}

template <>
struct lanes_of<bf16_number> {
  static HWY_INLINE f32_vector load(void const* data, index_t i) {
    u16_vector const codes = hn::LoadU(u16_tag{}, at<std::uint16_t>(data, i));
    return of_bits(hn::ShiftLeft<16>(hn::PromoteTo(i32_tag{}, codes)));
  }
  static HWY_INLINE void store(f32_vector numbers, void* data, index_t i) {
    hn::StoreU(codes_of(numbers), u16_tag{}, at<std::uint16_t>(data, i));
  }
  /// Two vectors at once, which is cheaper.
  static HWY_INLINE void store(f32_vector lower, f32_vector upper, void* data, index_t i) {
    hn::Repartition<std::uint16_t, i32_tag> const tag;
    auto const codes = hn::ConcatOdd(tag, hn::BitCast(tag, bf16_codes(upper)),
                                     hn::BitCast(tag, bf16_codes(lower)));
    hn::StoreU(codes, tag, at<std::uint16_t>(data, i));
  }

 private:
  static HWY_INLINE u16_vector codes_of(f32_vector numbers) {
    hn::RebindToUnsigned<i32_tag> const unsigned_tag;
    auto const codes = hn::ShiftRight<16>(hn::BitCast(unsigned_tag, bf16_codes(numbers)));
    return hn::DemoteTo(u16_tag{}, hn::BitCast(i32_tag{}, codes));
  }
};

template <>
HWY_INLINE lane_pair load_pair<bf16_number>(void const* data, index_t i) {
  hn::Repartition<std::uint16_t, i32_tag> const tag;
  auto const codes = hn::BitCast(i32_tag{}, hn::LoadU(tag, at<std::uint16_t>(data, i)));
  return {of_bits(hn::ShiftLeft<16>(codes)), of_bits(hn::And(codes, all(0xffff0000U)))};
}
/// The bits of numbers that are not NaN, with the upper 16 rounded; the lower ones hold garbage.
HWY_INLINE i32_vector bf16_bits_of_numbers(f32_vector numbers) {
  i32_vector const bits = bits_of(numbers);
  auto const is_odd = hn::TestBit(bits, all(0x10000));
  return hn::Add(bits, hn::IfThenElse(is_odd, all(0x8000), all(0x7fff)));
}

HWY_INLINE bool has_nan(lane_pair numbers) {
#if HWY_TARGET == HWY_AVX3
  return _mm512_cmp_ps_mask(numbers.first.raw, numbers.second.raw, _CMP_UNORD_Q) != 0;
#else
  auto const is_nan = hn::Or(hn::IsNaN(numbers.first), hn::IsNaN(numbers.second));
  return !hn::AllFalse(f32_tag{}, is_nan);
#endif
}

/// NaN is rare and known by then: the branch costs less than a select for each vector.
HWY_INLINE i32_vector bf16_pair_codes(lane_pair numbers) {
  bool const any_nan = has_nan(numbers);
  i32_vector const even =
      HWY_UNLIKELY(any_nan) ? bf16_codes(numbers.first) : bf16_bits_of_numbers(numbers.first);
  i32_vector const odd =
      HWY_UNLIKELY(any_nan) ? bf16_codes(numbers.second) : bf16_bits_of_numbers(numbers.second);
  auto const lower = hn::ShiftRight<16>(hn::BitCast(hn::RebindToUnsigned<i32_tag>{}, even));
  return hn::Or(hn::BitCast(i32_tag{}, lower), hn::And(odd, all(0xffff0000U)));
}

template <>
HWY_INLINE void store_pair<bf16_number>(lane_pair numbers, void* data, index_t i) {
  hn::Repartition<std::uint16_t, i32_tag> const tag;
  hn::StoreU(hn::BitCast(tag, bf16_pair_codes(numbers)), tag, at<std::uint16_t>(data, i));
}

/// The processor converts, subnormals included whatever the state of the thread; NaN it would give
/// a payload.
HWY_INLINE f32_vector of_f16_codes(u16_vector codes) {
  return hn::PromoteTo(f32_tag{}, hn::BitCast(f16_tag{}, codes));
}
HWY_INLINE u16_vector f16_codes(f32_vector numbers) {
  auto const is_nan = hn::IsNaN(numbers);
  // 0x7fc00000 converts to 0x7e00, the only NaN that is written.
  f32_vector const plain = hn::IfThenElse(is_nan, of_bits(all(0x7fc00000U)), numbers);
  return hn::BitCast(u16_tag{}, hn::DemoteTo(f16_tag{}, plain));
}
HWY_INLINE f32_vector round_lanes_to_f16(f32_vector numbers) {
  return of_f16_codes(f16_codes(numbers));
}

template <>
struct lanes_of<f16_number> {
  static HWY_INLINE f32_vector load(void const* data, index_t i) {
    f32_vector const numbers = of_f16_codes(hn::LoadU(u16_tag{}, at<std::uint16_t>(data, i)));
    return plain_nan_where(hn::IsNaN(numbers), numbers);
  }
  static HWY_INLINE void store(f32_vector numbers, void* data, index_t i) {
    hn::StoreU(f16_codes(numbers), u16_tag{}, at<std::uint16_t>(data, i));
  }
};

/// encode_float of numbers that are not negative and not NaN, without a sign.
template <float_format Format>
HWY_INLINE i32_vector magnitude_codes(f32_vector magnitudes) {
  static_assert(Format.saturates);
  constexpr int drop = 23 - Format.mantissa;
  constexpr std::uint32_t smallest_normal = (128U - Format.bias()) << 23;
  constexpr std::uint32_t lift = std::uint32_t{drop} << 23;
  f32_vector const bounded =
      hn::Min(magnitudes, hn::Set(f32_tag{}, decode_float<Format>(Format.top)));
  // Added to a number, the power of two that is `drop` binades above it (above the smallest normal
  // number at least) makes the addition itself round to the step of the format; what the sum has
  // more than that power is a count of steps.
  i32_vector const binade =
      hn::Max(hn::And(bits_of(bounded), all(0x7f800000U)), all(smallest_normal));
  i32_vector const power = hn::Add(binade, all(lift));
  i32_vector const steps = hn::Sub(bits_of(hn::Add(bounded, of_bits(power))), power);
  return hn::Add(steps, hn::ShiftRight<drop>(hn::Sub(binade, all(smallest_normal))));
}

/// encode_float of every lane.
template <float_format Format>
HWY_INLINE i32_vector float_codes(f32_vector numbers) {
  i32_vector const bits = bits_of(numbers);
  i32_vector const sign =
      hn::And(hn::ShiftRight<32 - Format.width()>(bits), all(1U << (Format.width() - 1)));
  i32_vector const code = hn::Or(magnitude_codes<Format>(hn::Abs(numbers)), sign);
  auto const is_nan = hn::RebindMask(i32_tag{}, hn::IsNaN(numbers));
  return hn::IfThenElse(is_nan, all(Format.nan), code);
}

HWY_INLINE void store_bytes(i32_vector codes, void* data, index_t i) {
  hn::StoreU(hn::DemoteTo(u8_tag{}, codes), u8_tag{}, at<std::uint8_t>(data, i));
}

/// Codes of 8-bit floats in the upper byte of 16-bit words.
HWY_INLINE u16_vector load_upper_bytes(void const* data, index_t i) {
  return hn::ShiftLeft<8>(hn::PromoteTo(u16_tag{}, hn::LoadU(u8_tag{}, at<std::uint8_t>(data, i))));
}

template <>
struct lanes_of<e4m3_number> {
  static HWY_INLINE f32_vector load(void const* data, index_t i) {
    // The same bits one place lower are an f16 of 1/256 of the number, subnormals too. The place of
    // NaN in f16 stays free: 0x7f becomes 480.
    hn::RebindToSigned<u16_tag> const signed_tag;
    auto const shifted = hn::ShiftRight<1>(hn::BitCast(signed_tag, load_upper_bytes(data, i)));
    auto const half = hn::And(hn::BitCast(u16_tag{}, shifted), hn::Set(u16_tag{}, 0xbf80));
    f32_vector const numbers = hn::Mul(of_f16_codes(half), hn::Set(f32_tag{}, 256.0F));
    return plain_nan_where(hn::Eq(hn::Abs(numbers), hn::Set(f32_tag{}, 480.0F)), numbers);
  }
  static HWY_INLINE void store(f32_vector numbers, void* data, index_t i) {
    store_bytes(float_codes<e4m3_format>(numbers), data, i);
  }
};

template <>
struct lanes_of<e5m2_number> {
  static HWY_INLINE f32_vector load(void const* data, index_t i) {
    f32_vector const numbers = of_f16_codes(load_upper_bytes(data, i));
    return plain_nan_where(hn::IsNaN(numbers), numbers);
  }
  static HWY_INLINE void store(f32_vector numbers, void* data, index_t i) {
    store_bytes(float_codes<e5m2_format>(numbers), data, i);
  }
};

template <>
struct lanes_of<e8m0_number> {
  static HWY_INLINE f32_vector load(void const* data, index_t i) {
    i32_vector const codes =
        hn::PromoteTo(i32_tag{}, hn::LoadU(u8_tag{}, at<std::uint8_t>(data, i)));
    i32_vector const power = hn::ShiftLeft<23>(codes);
    i32_vector const known = hn::IfThenElse(hn::Eq(codes, all(0)), all(0x00400000U), power);
    return of_bits(hn::IfThenElse(hn::Eq(codes, all(0xff)), all(0x7fc00000U), known));
  }
};

/// round_to_integer of every lane.
HWY_INLINE i32_vector integers_of(f32_vector numbers, float low, float high) {
  f32_tag const tag;
  f32_vector const known = hn::IfThenZeroElse(hn::IsNaN(numbers), numbers);
  return hn::NearestInt(hn::Min(hn::Max(known, hn::Set(tag, low)), hn::Set(tag, high)));
}

template <>
struct lanes_of<int8_number> {
  static HWY_INLINE f32_vector load(void const* data, index_t i) {
    hn::RebindToSigned<u8_tag> const i8_tag;
    return hn::ConvertTo(f32_tag{},
                         hn::PromoteTo(i32_tag{}, hn::LoadU(i8_tag, at<std::int8_t>(data, i))));
  }
  static HWY_INLINE void store(f32_vector numbers, void* data, index_t i) {
    hn::RebindToSigned<u8_tag> const i8_tag;
    hn::StoreU(hn::DemoteTo(i8_tag, integers_of(numbers, -128.0F, 127.0F)), i8_tag,
               at<std::int8_t>(data, i));
  }
};

using packed_tag = hn::Half<u8_tag>;
using pair_tag = hn::Rebind<std::uint16_t, packed_tag>;

/// One nibble per lane, the lower one of a byte first.
HWY_INLINE i32_vector load_nibbles(void const* data, index_t i) {
  auto const bytes =
      hn::PromoteTo(pair_tag{}, hn::LoadU(packed_tag{}, at<std::uint8_t>(data, i / 2)));
  auto const apart = hn::And(hn::Or(bytes, hn::ShiftLeft<4>(bytes)), hn::Set(pair_tag{}, 0x0f0f));
  return hn::PromoteTo(i32_tag{}, hn::BitCast(u8_tag{}, apart));
}
HWY_INLINE void store_nibbles(i32_vector nibbles, void* data, index_t i) {
  auto const pairs = hn::BitCast(pair_tag{}, hn::DemoteTo(u8_tag{}, nibbles));
  auto const together = hn::And(hn::Or(pairs, hn::ShiftRight<4>(pairs)), hn::Set(pair_tag{}, 0xff));
  auto const bytes =
      hn::DemoteTo(packed_tag{}, hn::BitCast(hn::RebindToSigned<pair_tag>{}, together));
  hn::StoreU(bytes, packed_tag{}, at<std::uint8_t>(data, i / 2));
}

template <>
struct lanes_of<int4_number> {
  static HWY_INLINE f32_vector load(void const* data, index_t i) {
    i32_vector const nibbles = load_nibbles(data, i);
    return hn::ConvertTo(f32_tag{}, hn::Sub(hn::Xor(nibbles, all(8)), all(8)));
  }
  static HWY_INLINE void store(f32_vector numbers, void* data, index_t i) {
    store_nibbles(hn::And(integers_of(numbers, -8.0F, 7.0F), all(0xf)), data, i);
  }
};

template <>
struct lanes_of<fp4_number> {
  static HWY_INLINE f32_vector load(void const* data, index_t i) {
    i32_vector const nibbles = load_nibbles(data, i);
    f32_vector const table = hn::LoadU(f32_tag{}, tables::decoded<e2m1_format>.data());
    if constexpr (vector_length == 16) {
      return hn::TableLookupLanes(table, hn::IndicesFromVec(f32_tag{}, nibbles));
    } else {
      i32_vector const magnitude = hn::And(nibbles, all(7));
      f32_vector const numbers =
          hn::TableLookupLanes(table, hn::IndicesFromVec(f32_tag{}, magnitude));
      return of_bits(hn::Or(bits_of(numbers), hn::ShiftLeft<28>(hn::Xor(nibbles, magnitude))));
    }
  }
  static HWY_INLINE void store(f32_vector numbers, void* data, index_t i) {
    store_nibbles(float_codes<e2m1_format>(numbers), data, i);
  }
};

#endif

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
