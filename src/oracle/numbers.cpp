#include "oracle/oracle.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace moe64::oracle {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// What the codes with an exponent field of all ones mean.
enum class specials { ieee, one_nan, none };

/// A sign bit, then `exponent_bits`, then `mantissa_bits`; exponent field 0 holds the subnormal
/// numbers.
struct float_format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  specials top;
  double largest;
  bool saturates;
};

constexpr float_format f32_format{8, 23, 127, specials::ieee, 0x1.fffffep+127, false};
constexpr float_format bf16_format{8, 7, 127, specials::ieee, 0x1.fep+127, false};
constexpr float_format f16_format{5, 10, 15, specials::ieee, 65504.0, false};
constexpr float_format e4m3_format{4, 3, 7, specials::one_nan, 448.0, true};
constexpr float_format e5m2_format{5, 2, 15, specials::ieee, 57344.0, true};
constexpr float_format fp4_format{2, 1, 1, specials::none, 6.0, true};

double decode(std::uint32_t code, float_format const& format) {
  std::uint32_t const mantissa_ones = (1U << format.mantissa_bits) - 1U;
  std::uint32_t const exponent_ones = (1U << format.exponent_bits) - 1U;
  std::uint32_t const mantissa = code & mantissa_ones;
  std::uint32_t const exponent = (code >> format.mantissa_bits) & exponent_ones;
  bool const negative = ((code >> (format.mantissa_bits + format.exponent_bits)) & 1U) != 0;

  double magnitude = 0.0;
  if (format.top == specials::ieee && exponent == exponent_ones) {
    magnitude = mantissa == 0 ? infinity : nan;
  } else if (format.top == specials::one_nan && exponent == exponent_ones &&
             mantissa == mantissa_ones) {
    magnitude = nan;
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits);
  } else {
    double const scaled = std::ldexp(mantissa + mantissa_ones + 1U, -format.mantissa_bits);
    magnitude = std::scalbln(scaled, long{exponent} - format.bias);
  }
  return negative ? -magnitude : magnitude;
}

/// A stack has millions of codes and an 8-bit type 256 numbers.
template <std::size_t Codes>
std::array<double, Codes> decode_all(float_format const& format) {
  std::array<double, Codes> numbers{};
  for (std::uint32_t code = 0; code < Codes; ++code) numbers[code] = decode(code, format);
  return numbers;
}

double round_to_format(double value, float_format const& format) {
  if (std::isnan(value)) return value;
  double const overflow = format.saturates ? format.largest : infinity;
  double const magnitude = std::fabs(value);
  double rounded = 0.0;
  if (std::isinf(value)) {
    rounded = overflow;
  } else if (magnitude != 0.0) {
    int const exponent = std::max(std::ilogb(magnitude), 1 - format.bias);
    int const quantum = exponent - format.mantissa_bits;
    rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -quantum)), quantum);
    if (rounded > format.largest) rounded = overflow;
  }
  return std::copysign(rounded, value);
}

double round_to_integer(double value, double least, double most) {
  if (std::isnan(value)) return 0.0;
  return std::fmin(std::fmax(std::nearbyint(value), least), most);
}

double round_up_to_power_of_two(double value) {
  if (!std::isfinite(value)) return nan;
  if (value > 0x1p+127) return 0x1p+127;
  if (value <= 0x1p-127) return 0x1p-127;
  int exponent = 0;
  double const fraction = std::frexp(value, &exponent);  // in [0.5, 1)
  return std::ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
}

template <class T>
T read(void const* data, index_t offset) {
  T value;
  std::memcpy(&value, static_cast<std::byte const*>(data) + offset * index_t{sizeof(T)}, sizeof(T));
  return value;
}

/// The lower half of a byte is the element with the even offset.
std::uint32_t nibble(void const* data, index_t offset) {
  std::uint32_t const byte = read<std::uint8_t>(data, offset / 2);
  return offset % 2 == 0 ? byte & 0xfU : byte >> 4U;
}

}  // namespace

double load(void const* data, dtype type, index_t offset) {
  static std::array<double, 256> const e4m3_numbers = decode_all<256>(e4m3_format);
  static std::array<double, 256> const e5m2_numbers = decode_all<256>(e5m2_format);
  static std::array<double, 16> const fp4_numbers = decode_all<16>(fp4_format);
  switch (type) {
    case dtype::f32:
      return read<float>(data, offset);
    case dtype::bf16:
      return decode(read<std::uint16_t>(data, offset), bf16_format);
    case dtype::f16:
      return decode(read<std::uint16_t>(data, offset), f16_format);
    case dtype::e4m3:
      return e4m3_numbers[read<std::uint8_t>(data, offset)];
    case dtype::e5m2:
      return e5m2_numbers[read<std::uint8_t>(data, offset)];
    case dtype::e8m0: {
      int const exponent = read<std::uint8_t>(data, offset);
      return exponent == 255 ? nan : std::ldexp(1.0, exponent - 127);
    }
    case dtype::int8:
      return read<std::int8_t>(data, offset);
    case dtype::int4: {
      double const unsigned_value = nibble(data, offset);
      return unsigned_value < 8.0 ? unsigned_value : unsigned_value - 16.0;
    }
    case dtype::fp4:
      return fp4_numbers[nibble(data, offset)];
    case dtype::int32:
      return read<std::int32_t>(data, offset);
    case dtype::int64:
      return static_cast<double>(read<std::int64_t>(data, offset));
    case dtype::uint8:
      return read<std::uint8_t>(data, offset);
  }
  return nan;
}

double at(tensor_view const& tensor, index_t i, index_t j, index_t k) {
  index_t const index[max_rank] = {i, j, k};
  index_t offset = 0;
  for (int d = 0; d < tensor.rank; ++d) offset += index[d] * tensor.stride[d];
  return load(tensor.data, tensor.type, offset);
}

namespace {

/// Which matrix of a stack is that of an expert.
index_t place_of(tensor_view const& places, index_t expert) {
  return places.present() ? read<std::int64_t>(places.data, expert * places.stride[0]) : expert;
}

}  // namespace

double at(quantized_view const& q, index_t expert, index_t row, index_t col) {
  double const code = at(q.values(), place_of(q.places().values, expert), row, col);
  granularity const& layout = q.layout();
  if (layout.kind == scale_kind::none) return code;

  index_t scale_row = row;
  index_t scale_col = 0;
  if (layout.kind == scale_kind::tensor) scale_row = 0;
  if (layout.kind == scale_kind::block) scale_row = row / layout.block_rows;
  if (layout.kind == scale_kind::block || layout.kind == scale_kind::group) {
    scale_col = col / layout.block_cols;
  }
  double scale = at(q.scales(), place_of(q.places().scales, expert), scale_row, scale_col);
  if (q.global().values.present()) {
    double const global = at(q.global().values, expert);
    bool const divides = q.global().applied == global_scale::direction::divide;
    scale = round_to(divides ? scale / global : scale * global, dtype::f32);
  }
  return round_to(code * scale, dtype::f32);
}

double at(weight_stack const& weights, index_t expert, index_t row, index_t col) {
  index_t const first_rows = weights.part(0).rows();
  return row < first_rows ? at(weights.part(0), expert, row, col)
                          : at(weights.part(1), expert, row - first_rows, col);
}

double round_to(double value, dtype type) {
  switch (type) {
    case dtype::f32:  // what the conversion does, where it is defined
      return std::fabs(value) < 0x1p+127 ? double{static_cast<float>(value)}
                                         : round_to_format(value, f32_format);
    case dtype::bf16:
      return round_to_format(value, bf16_format);
    case dtype::f16:
      return round_to_format(value, f16_format);
    case dtype::e4m3:
      return round_to_format(value, e4m3_format);
    case dtype::e5m2:
      return round_to_format(value, e5m2_format);
    case dtype::fp4:
      return std::isnan(value) ? fp4_format.largest : round_to_format(value, fp4_format);
    case dtype::e8m0:
      return round_up_to_power_of_two(value);
    case dtype::int8:
      return round_to_integer(value, -128.0, 127.0);
    case dtype::int4:
      return round_to_integer(value, -8.0, 7.0);
    case dtype::uint8:
      return round_to_integer(value, 0.0, 255.0);
    case dtype::int32:
      return round_to_integer(value, -0x1p+31, 0x1p+31 - 1.0);
    case dtype::int64:
      return round_to_integer(value, -0x1p+63, 0x1p+63);
  }
  return nan;
}

}  // namespace moe64::oracle
