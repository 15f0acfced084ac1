#include "checkpoint/scan/value_sample.hpp"

#include "core/float8.hpp"

#include <bit>
#include <cmath>
#include <cstring>

namespace moe64::checkpoint {
namespace {

template <class Stored>
Stored load(std::span<std::byte const> bytes, index_t i) {
  Stored stored = 0;
  std::memcpy(&stored, bytes.data() + static_cast<std::size_t>(i) * sizeof stored, sizeof stored);
  return stored;
}

double number_of_fnuz(value_kind kind, unsigned code) {
  if (code == 0x80) return std::nan("");
  unsigned const magnitude = code & 0x7fU;
  unsigned const fraction_bits = kind == value_kind::e4m3fnuz ? 3 : 2;
  int const bias = kind == value_kind::e4m3fnuz ? 8 : 16;
  auto const exponent = static_cast<int>(magnitude >> fraction_bits);  // narrow-ok: below 32
  unsigned const unit = 1U << fraction_bits;
  unsigned const fraction = magnitude & (unit - 1U);
  double const value =
      exponent == 0 ? std::ldexp(static_cast<double>(fraction) / unit, 1 - bias)
                    : std::ldexp(1.0 + static_cast<double>(fraction) / unit, exponent - bias);
  return code < 0x80 ? value : -value;
}

unsigned nibble_at(std::span<std::byte const> bytes, index_t i) {
  auto const both = std::to_integer<unsigned>(bytes[static_cast<std::size_t>(i / 2)]);
  return i % 2 == 0 ? both & 15U : both >> 4U;
}

std::uint64_t mixed(std::uint64_t digest, std::uint64_t next) {  // splitmix64
  std::uint64_t value = (digest ^ next) + 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

}  // namespace

double number_at(value_kind kind, std::span<std::byte const> bytes, index_t i) noexcept {
  switch (kind) {
    case value_kind::opaque:
      return 0.0;
    case value_kind::e4m3:
      return static_cast<double>(decode_float<e4m3_format>(load<std::uint8_t>(bytes, i)));
    case value_kind::e5m2:
      return static_cast<double>(decode_float<e5m2_format>(load<std::uint8_t>(bytes, i)));
    case value_kind::e4m3fnuz:
    case value_kind::e5m2fnuz:
      return number_of_fnuz(kind, load<std::uint8_t>(bytes, i));
    case value_kind::e8m0:
      return static_cast<double>(decode_e8m0(load<std::uint8_t>(bytes, i)));
    case value_kind::fp4:
      return static_cast<double>(decode_float<e2m1_format>(nibble_at(bytes, i)));
    case value_kind::int4:
      return static_cast<double>(nibble_at(bytes, i)) - 8.0;
    case value_kind::f16:
      return static_cast<double>(decode_float<f16_format>(load<std::uint16_t>(bytes, i)));
    case value_kind::bf16:
      return static_cast<double>(decode_bf16(load<std::uint16_t>(bytes, i)));
    case value_kind::f32:
      return static_cast<double>(std::bit_cast<float>(load<std::uint32_t>(bytes, i)));
    case value_kind::f64:
      return std::bit_cast<double>(load<std::uint64_t>(bytes, i));
  }
  return 0.0;
}

void value_sample::add(double stored, double scale) noexcept {
  double const number = stored * scale;
  if (!std::isfinite(number)) return;
  if (taken == 0) first = stored;
  constant = constant && stored == first;
  squares += number * number;
  digest = mixed(digest, std::bit_cast<std::uint64_t>(number));
  ++taken;
  zeros += stored == 0.0 ? 1 : 0;
}

void value_sample::append(value_sample const& next) noexcept {
  if (next.taken == 0) return;
  if (taken == 0) first = next.first;
  constant = constant && next.constant && next.first == first;
  squares += next.squares;
  digest = mixed(digest, next.digest);
  taken += next.taken;
  zeros += next.zeros;
}

double value_sample::rms() const noexcept {
  return taken == 0 ? 0.0 : std::sqrt(squares / static_cast<double>(taken));
}

}  // namespace moe64::checkpoint
