#include "checkpoint/scan/value_counts.hpp"

#include "core/float8.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace moe64::checkpoint {
namespace {

// The loops below are written so that compilers turn them into byte-wide vector code of the plain
// instruction set: sums of bytes that cannot overflow, and largest values.

/// Bytes that are looked at in one go: they stay in the first-level cache while they are looked at
/// more than once.
constexpr std::size_t portion = 4096;
constexpr std::size_t most_counted = 240;  // a sum of that many ones fits a byte

using bytes_view = std::span<std::uint8_t const>;

index_t count_equal(bytes_view bytes, std::uint8_t mask, std::uint8_t wanted) noexcept {
  index_t total = 0;
  while (!bytes.empty()) {
    std::size_t const size = std::min(bytes.size(), most_counted);
    std::uint8_t const* const data = bytes.data();
    std::uint8_t count = 0;
    for (std::size_t i = 0; i < size; ++i) {
      count = static_cast<std::uint8_t>(count + ((data[i] & mask) == wanted));
    }
    total += count;
    bytes = bytes.subspan(size);
  }
  return total;
}

struct byte_peaks {
  std::uint8_t magnitude = 0;  ///< largest without the sign
  std::uint8_t shifted = 0;    ///< 255 exactly where there is a 0x80
};

byte_peaks peaks_of(bytes_view bytes) noexcept {
  std::uint8_t magnitude = 0;
  std::uint8_t shifted = 0;
  std::uint8_t const* const data = bytes.data();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::uint8_t const m = data[i] & 0x7f;
    auto const s = static_cast<std::uint8_t>(data[i] + 0x7f);
    magnitude = m > magnitude ? m : magnitude;
    shifted = s > shifted ? s : shifted;
  }
  return {magnitude, shifted};
}

/// How a format of one byte with a sign tells its codes apart.
struct byte_rule {
  std::uint8_t top = 0;           ///< largest finite magnitude
  bool zero_is_negative = false;  ///< 0x80 is -0, otherwise NaN
  float (*decode)(std::uint32_t code) = nullptr;
};

float decode_fnuz4(std::uint32_t code) { return decode_float<e4m3_format>(code) / 2.0F; }
float decode_fnuz5(std::uint32_t code) { return decode_float<e5m2_format>(code) / 2.0F; }

byte_rule rule_of(value_kind kind) noexcept {
  switch (kind) {
    case value_kind::e5m2:
      return {0x7b, true, decode_float<e5m2_format>};
    case value_kind::e4m3fnuz:
      return {0x7f, false, decode_fnuz4};
    case value_kind::e5m2fnuz:
      return {0x7f, false, decode_fnuz5};
    default:
      return {0x7e, true, decode_float<e4m3_format>};
  }
}

/// Largest code of at most `top`, within `mask`; 0 when all are larger. Those above wrap around to
/// the lowest places.
std::uint8_t largest_up_to(bytes_view bytes, std::uint8_t mask, std::uint8_t top) noexcept {
  auto const shift = static_cast<std::uint8_t>(mask - top);
  std::uint8_t largest = 0;
  std::uint8_t const* const data = bytes.data();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto const place = static_cast<std::uint8_t>(((data[i] & mask) + shift) & mask);
    largest = place > largest ? place : largest;
  }
  return largest > shift ? static_cast<std::uint8_t>(largest - shift) : std::uint8_t{0};
}

/// 240 and 57344 in the formats without negative zero, whose codes above the FN ones' top decode
/// by the same arithmetic.
double magnitude_of(value_kind kind, byte_rule const& rule, std::uint8_t code) {
  if (kind == value_kind::e4m3fnuz && code == 0x7f) return 240.0;
  if (kind == value_kind::e5m2fnuz && code >= 0x7c) return (1.0 + (code & 3) / 4.0) * 32768.0;
  return rule.decode(code);
}

value_counts count_float8(value_kind kind, bytes_view bytes) noexcept {
  byte_rule const rule = rule_of(kind);
  value_counts result;
  std::uint8_t largest = 0;
  for (std::size_t begin = 0; begin < bytes.size(); begin += portion) {
    bytes_view const part = bytes.subspan(begin, std::min(portion, bytes.size() - begin));
    byte_peaks const peaks = peaks_of(part);
    if (peaks.shifted == 0xff) {
      index_t const found = count_equal(part, 0xff, 0x80);
      (rule.zero_is_negative ? result.negative_zero : result.non_finite) += found;
    }
    if (peaks.magnitude >= rule.top) result.saturated += count_equal(part, 0x7f, rule.top);
    for (unsigned above = rule.top + 1U; above <= peaks.magnitude; ++above) {
      result.non_finite += count_equal(part, 0x7f, static_cast<std::uint8_t>(above));
    }
    largest = std::max(largest, peaks.magnitude > rule.top ? largest_up_to(part, 0x7f, rule.top)
                                                           : peaks.magnitude);
  }
  result.elements = static_cast<index_t>(bytes.size());
  result.largest = magnitude_of(kind, rule, largest);
  return result;
}

value_counts count_exponents(bytes_view bytes) noexcept {
  value_counts result;
  result.elements = static_cast<index_t>(bytes.size());
  result.non_finite = count_equal(bytes, 0xff, 0xff);
  if (result.non_finite < result.elements) {
    result.largest = static_cast<double>(decode_e8m0(largest_up_to(bytes, 0xff, 0xfe)));
  }
  return result;
}

/// Nibbles, upper and lower, that are `wanted` under a mask.
index_t count_both(bytes_view bytes, unsigned mask, unsigned wanted) noexcept {
  return count_equal(bytes, static_cast<std::uint8_t>(mask), static_cast<std::uint8_t>(wanted)) +
         count_equal(bytes, static_cast<std::uint8_t>(mask << 4U),
                     static_cast<std::uint8_t>(wanted << 4U));
}

/// Magnitude of a nibble, before scaling.
double nibble_magnitude(value_kind kind, unsigned nibble) noexcept {
  if (kind == value_kind::int4) return std::abs(static_cast<double>(nibble) - 8.0);
  return std::abs(static_cast<double>(decode_float<e2m1_format>(nibble)));
}

double largest_nibble(value_kind kind, bytes_view bytes) noexcept {
  double largest = 0.0;
  for (unsigned nibble = 0; nibble < 16; ++nibble) {
    double const magnitude = nibble_magnitude(kind, nibble);
    if (magnitude <= largest) continue;
    if (count_both(bytes, 15, nibble) > 0) largest = magnitude;
  }
  return largest;
}

value_counts count_nibbles(value_kind kind, bytes_view bytes) noexcept {
  value_counts result;
  bool const integer = kind == value_kind::int4;
  index_t furthest = 0;  // codes of the very largest magnitude: with one there is no need to look
  for (std::size_t begin = 0; begin < bytes.size(); begin += portion) {
    bytes_view const part = bytes.subspan(begin, std::min(portion, bytes.size() - begin));
    furthest += integer ? count_both(part, 15, 0) : count_both(part, 7, 7);
    if (integer) {
      result.saturated += count_both(part, 15, 15);
    } else {
      result.negative_zero += count_both(part, 15, 8);
    }
  }
  result.elements = 2 * static_cast<index_t>(bytes.size());
  result.saturated += furthest;
  double const most = integer ? 8.0 : 6.0;
  result.largest = furthest > 0 ? most : largest_nibble(kind, bytes);
  return result;
}

/// Numbers of `Unsigned` bits whose magnitudes are ordered like their bits.
template <class Unsigned, class Signed>
value_counts count_numbers(std::span<std::byte const> bytes, Unsigned infinity,
                           double (*decode)(Unsigned)) noexcept {
  constexpr auto magnitude_mask = static_cast<Unsigned>(static_cast<Unsigned>(~Unsigned{0}) >> 1U);
  value_counts result;
  std::size_t const count = bytes.size() / sizeof(Unsigned);
  Unsigned largest = 0;
  for (std::size_t begin = 0; begin < count; begin += portion) {
    std::byte const* const data = bytes.data() + begin * sizeof(Unsigned);
    std::size_t const size = std::min(portion, count - begin);
    Signed peak = 0;  // never negative; signed, because that is what vector units compare
    for (std::size_t i = 0; i < size; ++i) {
      Unsigned bits = 0;
      std::memcpy(&bits, data + i * sizeof(Unsigned), sizeof bits);
      auto const magnitude = static_cast<Signed>(bits & magnitude_mask);
      peak = magnitude > peak ? magnitude : peak;
    }
    if (static_cast<Unsigned>(peak) < infinity) {
      largest = std::max(largest, static_cast<Unsigned>(peak));
      continue;
    }
    for (std::size_t i = 0; i < size; ++i) {
      Unsigned bits = 0;
      std::memcpy(&bits, data + i * sizeof(Unsigned), sizeof bits);
      auto const magnitude = static_cast<Unsigned>(bits & magnitude_mask);
      if (magnitude >= infinity) {
        ++result.non_finite;
      } else {
        largest = std::max(largest, magnitude);
      }
    }
  }
  result.elements = static_cast<index_t>(count);
  result.largest = decode(largest);
  return result;
}

double from_bf16(std::uint16_t bits) { return static_cast<double>(decode_bf16(bits)); }
double from_f16(std::uint16_t bits) { return static_cast<double>(decode_float<f16_format>(bits)); }
double from_f32(std::uint32_t bits) { return static_cast<double>(std::bit_cast<float>(bits)); }
double from_f64(std::uint64_t bits) { return std::bit_cast<double>(bits); }

}  // namespace

value_kind kind_of(file_dtype type) noexcept {
  switch (type) {
    case file_dtype::f4:
      return value_kind::fp4;
    case file_dtype::f8_e5m2:
      return value_kind::e5m2;
    case file_dtype::f8_e4m3:
      return value_kind::e4m3;
    case file_dtype::f8_e8m0:
      return value_kind::e8m0;
    case file_dtype::f8_e4m3fnuz:
      return value_kind::e4m3fnuz;
    case file_dtype::f8_e5m2fnuz:
      return value_kind::e5m2fnuz;
    case file_dtype::f16:
      return value_kind::f16;
    case file_dtype::bf16:
      return value_kind::bf16;
    case file_dtype::f32:
    case file_dtype::c64:  // two of them
      return value_kind::f32;
    case file_dtype::f64:
      return value_kind::f64;
    default:
      return value_kind::opaque;
  }
}

value_kind kind_of(value_codec codec, file_dtype type) noexcept {
  switch (codec) {
    case value_codec::e4m3:
      return value_kind::e4m3;
    case value_codec::fp4x2:
    case value_codec::fp4blk:
      return value_kind::fp4;
    case value_codec::int4x8:
      return value_kind::int4;
    case value_codec::plain:
      break;
  }
  return kind_of(type);
}

bool is_codes(value_kind kind) noexcept {
  return kind != value_kind::opaque && kind < value_kind::f16;
}

index_t bits(value_kind kind, file_dtype type) noexcept {
  switch (kind) {
    case value_kind::opaque:
      return bits(type);
    case value_kind::fp4:
    case value_kind::int4:
      return 4;
    case value_kind::f16:
    case value_kind::bf16:
      return 16;
    case value_kind::f32:
      return 32;
    case value_kind::f64:
      return 64;
    default:
      return 8;
  }
}

void value_counts::add(value_counts const& other) noexcept {
  elements += other.elements;
  non_finite += other.non_finite;
  saturated += other.saturated;
  negative_zero += other.negative_zero;
  largest = std::max(largest, other.largest);
}

value_counts count_values(value_kind kind, file_dtype type,
                          std::span<std::byte const> bytes) noexcept {
  bytes_view const codes(reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size());
  switch (kind) {
    case value_kind::opaque:
      break;
    case value_kind::e4m3:
    case value_kind::e5m2:
    case value_kind::e4m3fnuz:
    case value_kind::e5m2fnuz:
      return count_float8(kind, codes);
    case value_kind::e8m0:
      return count_exponents(codes);
    case value_kind::fp4:
    case value_kind::int4:
      return count_nibbles(kind, codes);
    case value_kind::f16:
      return count_numbers<std::uint16_t, std::int16_t>(bytes, 0x7c00, from_f16);
    case value_kind::bf16:
      return count_numbers<std::uint16_t, std::int16_t>(bytes, 0x7f80, from_bf16);
    case value_kind::f32:
      return count_numbers<std::uint32_t, std::int32_t>(bytes, 0x7f800000, from_f32);
    case value_kind::f64:
      return count_numbers<std::uint64_t, std::int64_t>(bytes, 0x7ff0000000000000, from_f64);
  }
  value_counts result;
  result.elements = static_cast<index_t>(bytes.size()) * 8 / bits(type);
  return result;
}

value_counts count_nibble(value_kind kind, unsigned nibble) noexcept {
  value_counts result;
  result.elements = 1;
  bool const integer = kind == value_kind::int4;
  result.saturated = integer ? nibble == 0 || nibble == 15 : (nibble & 7U) == 7;
  result.negative_zero = !integer && nibble == 8;
  result.largest = nibble_magnitude(kind, nibble);
  return result;
}

}  // namespace moe64::checkpoint
