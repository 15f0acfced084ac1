// The loops that count, against counting one element at a time.
#include "checkpoint/dialect/storage_grid.hpp"
#include "checkpoint/scan/scale_counts.hpp"
#include "checkpoint/scan/value_counts.hpp"
#include "core/float8.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace moe64::test {
namespace {

using checkpoint::value_counts;
using checkpoint::value_kind;
using enum checkpoint::file_dtype;

/// A small float by its definition; NaN and infinity are told apart by the caller.
double number_of(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
  unsigned const mantissa = code & ((1U << mantissa_bits) - 1U);
  unsigned const exponent = code >> mantissa_bits & ((1U << exponent_bits) - 1U);
  double const fraction = std::ldexp(mantissa, -mantissa_bits);
  int const power = static_cast<int>(exponent) - bias;
  return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, power);
}

struct judged {
  bool non_finite = false;
  bool saturated = false;
  bool negative_zero = false;
  double magnitude = 0.0;
};

judged judge_byte(value_kind kind, unsigned byte) {
  unsigned const magnitude = byte & 0x7fU;
  switch (kind) {
    case value_kind::e4m3:
      return {magnitude == 0x7f, magnitude == 0x7e, byte == 0x80, number_of(magnitude, 4, 3, 7)};
    case value_kind::e5m2:
      return {magnitude >= 0x7c, magnitude == 0x7b, byte == 0x80, number_of(magnitude, 5, 2, 15)};
    case value_kind::e4m3fnuz:
      return {byte == 0x80, magnitude == 0x7f, false, number_of(magnitude, 4, 3, 8)};
    case value_kind::e5m2fnuz:
      return {byte == 0x80, magnitude == 0x7f, false, number_of(magnitude, 5, 2, 16)};
    default:
      return {byte == 0xff, false, false, std::ldexp(1.0, static_cast<int>(byte) - 127)};
  }
}

judged judge_nibble(value_kind kind, unsigned nibble) {
  if (kind == value_kind::int4) {
    return {false, nibble == 0 || nibble == 15, false, std::abs(static_cast<int>(nibble) - 8.0)};
  }
  return {false, (nibble & 7U) == 7, nibble == 8, number_of(nibble & 7U, 2, 1, 1)};
}

void add(value_counts& into, judged const& one) {
  ++into.elements;
  into.non_finite += one.non_finite ? 1 : 0;
  into.saturated += one.saturated ? 1 : 0;
  into.negative_zero += one.negative_zero ? 1 : 0;
  if (!one.non_finite) into.largest = std::max(into.largest, one.magnitude);
}

template <class Stored>
double stored_number(value_kind kind, Stored bits) {
  if constexpr (sizeof(Stored) == 2) {
    auto const sign = bits >> 15 != 0 ? -1.0 : 1.0;
    bool const half = kind == value_kind::f16;
    unsigned const top = half ? 0x1f : 0xff;
    unsigned const magnitude = bits & 0x7fffU;
    if (magnitude >> (half ? 10 : 7) == top) return std::nan("");
    return sign * number_of(magnitude, half ? 5 : 8, half ? 10 : 7, half ? 15 : 127);
  } else if constexpr (sizeof(Stored) == 4) {
    return static_cast<double>(std::bit_cast<float>(bits));
  } else {
    return std::bit_cast<double>(bits);
  }
}

template <class Stored>
value_counts naive_numbers(value_kind kind, std::vector<std::byte> const& bytes) {
  value_counts counts;
  for (std::size_t i = 0; i + sizeof(Stored) <= bytes.size(); i += sizeof(Stored)) {
    Stored bits = 0;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    double const number = stored_number(kind, bits);
    add(counts, {!std::isfinite(number), false, false, std::abs(number)});
  }
  return counts;
}

value_counts naive(value_kind kind, std::vector<std::byte> const& bytes) {
  switch (kind) {
    case value_kind::f16:
    case value_kind::bf16:
      return naive_numbers<std::uint16_t>(kind, bytes);
    case value_kind::f32:
      return naive_numbers<std::uint32_t>(kind, bytes);
    case value_kind::f64:
      return naive_numbers<std::uint64_t>(kind, bytes);
    default:
      break;
  }
  value_counts counts;
  for (std::byte const stored : bytes) {
    auto const byte = std::to_integer<unsigned>(stored);
    if (kind == value_kind::fp4 || kind == value_kind::int4) {
      add(counts, judge_nibble(kind, byte & 15U));
      add(counts, judge_nibble(kind, byte >> 4U));
    } else {
      add(counts, judge_byte(kind, byte));
    }
  }
  return counts;
}

struct counted_kind {
  value_kind kind;
  checkpoint::file_dtype type;
};
constexpr counted_kind all_kinds[] = {
    {value_kind::e4m3, f8_e4m3},
    {value_kind::e5m2, f8_e5m2},
    {value_kind::e4m3fnuz, f8_e4m3fnuz},
    {value_kind::e5m2fnuz, f8_e5m2fnuz},
    {value_kind::e8m0, f8_e8m0},
    {value_kind::fp4, u8},
    {value_kind::int4, i32},
    {value_kind::f16, f16},
    {value_kind::bf16, bf16},
    {value_kind::f32, f32},
    {value_kind::f64, f64},
};

void expect_same(value_counts const& found, value_counts const& expected, int kind,
                 std::size_t size) {
  EXPECT_EQ(found.elements, expected.elements) << kind << " of " << size;
  EXPECT_EQ(found.non_finite, expected.non_finite) << kind << " of " << size;
  EXPECT_EQ(found.saturated, expected.saturated) << kind << " of " << size;
  EXPECT_EQ(found.negative_zero, expected.negative_zero) << kind << " of " << size;
  EXPECT_EQ(found.largest, expected.largest) << kind << " of " << size;
}

TEST(value_counts, are_those_of_one_element_at_a_time) {
  for (counted_kind const& entry : all_kinds) {
    for (std::size_t const size :
         {0U, 8U, 16U, 24U, 120U, 240U, 248U, 488U, 4088U, 4096U, 4104U, 33000U}) {
      for (int spread = 0; spread < 4; ++spread) {
        random_source const draw(size * 4 + static_cast<std::size_t>(spread));
        std::vector<std::byte> bytes(size);
        for (std::size_t i = 0; i < size; ++i) {
          std::uint64_t const bits = draw.bits(static_cast<index_t>(i));
          // any byte; rare extremes; one value everywhere; small codes with rare extremes
          unsigned const byte = spread == 0   ? bits & 0xffU
                                : spread == 1 ? (bits % 997 == 0 ? bits >> 32 & 0xffU : 0x11U)
                                : spread == 2 ? 0xffU
                                              : (bits % 499 == 0 ? 0x80U : bits & 0x07U);
          bytes[i] = static_cast<std::byte>(byte);
        }
        expect_same(count_values(entry.kind, entry.type, bytes), naive(entry.kind, bytes),
                    static_cast<int>(entry.kind), size);
      }
    }
  }
}

TEST(value_counts, know_every_single_byte) {
  for (counted_kind const& entry : all_kinds) {
    if (bits(entry.kind, entry.type) > 8) continue;
    for (unsigned byte = 0; byte < 256; ++byte) {
      std::vector<std::byte> const one(3, static_cast<std::byte>(byte));
      expect_same(count_values(entry.kind, entry.type, one), naive(entry.kind, one),
                  static_cast<int>(entry.kind), byte);
    }
  }
}

TEST(value_counts, of_integers_only_count_elements) {
  std::vector<std::byte> const bytes(48, std::byte{0xff});
  value_counts const counts = count_values(value_kind::opaque, i64, bytes);
  EXPECT_EQ(counts.elements, 6);
  EXPECT_EQ(counts.non_finite, 0);
}

// ---- scales -------------------------------------------------------------------------------------

struct scale_case {
  checkpoint::file_dtype type;
  double smallest_normal;
};

TEST(scale_counts, are_those_of_one_scale_at_a_time) {
  for (scale_case const& entry :
       {scale_case{f32, 0x1p-126}, scale_case{bf16, 0x1p-126}, scale_case{f16, 0x1p-14},
        scale_case{u8, 0x1p-126}, scale_case{f8_e8m0, 0x1p-126}, scale_case{f8_e4m3, 0.0}}) {
    std::size_t const size = static_cast<std::size_t>(bits(entry.type)) / 8;
    for (int spread = 0; spread < 3; ++spread) {
      for (bool const powers : {false, true}) {
        index_t const count = 5000;
        random_source const draw(static_cast<std::uint64_t>(spread) + 17);
        std::vector<std::byte> stored(static_cast<std::size_t>(count) * size);
        for (std::size_t i = 0; i < stored.size(); ++i) {
          std::uint64_t const random = draw.bits(static_cast<index_t>(i));
          bool const odd = spread == 0 || (spread == 1 && random % 61 == 0);
          // 0x3c3c is a harmless number in every type
          stored[i] = static_cast<std::byte>(odd ? random >> 8 & 0xffU : 0x3cU);
        }
        checkpoint::scale_counts expected;
        std::vector<bool> zeros;
        for (index_t i = 0; i < count; ++i) {
          std::byte const* const at = stored.data() + static_cast<std::size_t>(i) * size;
          double number = 0.0;
          if (size == 4) {
            float value = 0.0F;
            std::memcpy(&value, at, 4);
            number = static_cast<double>(value);
          } else if (size == 2) {
            std::uint16_t value = 0;
            std::memcpy(&value, at, 2);
            number = stored_number(entry.type == f16 ? value_kind::f16 : value_kind::bf16, value);
          } else {
            auto const byte = std::to_integer<unsigned>(*at);
            judged const one =
                judge_byte(entry.type == f8_e4m3 ? value_kind::e4m3 : value_kind::e8m0, byte);
            number = one.non_finite ? std::nan("") : one.magnitude;
            if (entry.type == f8_e4m3 && byte >= 0x80U) number = -number;
          }
          ++expected.scales;
          zeros.push_back(number == 0.0);
          if (!std::isfinite(number)) {
            ++expected.non_finite;
            continue;
          }
          if (number == 0.0) {
            ++expected.zero;
            continue;
          }
          expected.negative += number < 0.0 ? 1 : 0;
          expected.subnormal += std::abs(number) < entry.smallest_normal ? 1 : 0;
          int exponent = 0;
          expected.not_power_of_two +=
              powers && std::frexp(std::abs(number), &exponent) != 0.5 ? 1 : 0;
          if (number < 0.0) continue;
          expected.smallest = std::min(expected.smallest, number);
          expected.largest = std::max(expected.largest, number);
        }
        checkpoint::scale_scanner scanner(entry.type, powers, count);
        std::span<std::byte const> rest = stored;
        while (!rest.empty()) {  // in pieces
          std::size_t const piece = std::min(rest.size(), 700 * size);
          scanner.add(rest.first(piece));
          rest = rest.subspan(piece);
        }
        EXPECT_EQ(scanner.counts(), expected) << name(entry.type) << ' ' << spread;
        for (index_t i = 0; i < count; ++i) {
          ASSERT_EQ(scanner.is_zero(i), zeros[static_cast<std::size_t>(i)]) << i;
        }
      }
    }
  }
}

TEST(scale_counts, have_the_median_of_the_positive_ones) {
  std::vector<float> const scales = {-1.0F, 0.0F, 5.0F, 1.0F, 3.0F, 2.0F, 4.0F, NAN};
  checkpoint::scale_scanner scanner(f32, false, 8);
  scanner.add(std::as_bytes(std::span(scales)));
  EXPECT_EQ(scanner.median(), 3.0);
}

TEST(scale_counts, take_the_median_of_many_from_evenly_spaced_ones) {
  std::vector<float> scales;
  for (int i = 0; i < 100'000; ++i) scales.push_back(static_cast<float>(i % 1000 + 1));
  checkpoint::scale_scanner scanner(f32, false, std::ssize(scales));
  scanner.add(std::as_bytes(std::span(scales)));
  EXPECT_NEAR(scanner.median(), 500.0, 60.0);
  EXPECT_EQ(scanner.counts().scales, 100'000);
  EXPECT_EQ(scanner.counts().smallest, 1.0);
  EXPECT_EQ(scanner.counts().largest, 1000.0);
}

// ---- blocks -------------------------------------------------------------------------------------

TEST(grid_axis, cover_every_element_once) {
  for (index_t const extent : {1, 5, 128, 192, 200, 384}) {
    for (index_t const block : {1, 7, 96, 128, 500}) {
      for (bool const halves : {false, true}) {
        if (halves && extent % 2 != 0) continue;
        checkpoint::grid_axis const axis{extent, block, halves ? extent / 2 : 0};
        EXPECT_EQ(axis.begin(axis.count()), extent);
        for (index_t i = 0; i < extent; ++i) {
          index_t const at = axis.at(i);
          ASSERT_GE(i, axis.begin(at));
          ASSERT_LT(i, axis.begin(at + 1));
          ASSERT_EQ(axis.end_at(i), axis.begin(at + 1));
          // by definition
          index_t const half = halves ? extent / 2 : extent;
          ASSERT_EQ(at, i / half * ceil_div(half, block) + i % half / block);
        }
      }
    }
  }
}

}  // namespace
}  // namespace moe64::test
