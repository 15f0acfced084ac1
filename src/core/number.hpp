#pragma once

#include "core/fail.hpp"
#include "core/float8.hpp"
#include "moe64/dtype.hpp"
#include "moe64/index.hpp"

#include <cstdint>
#include <cstring>
#include <utility>

/// One type per dtype that holds numbers: how element i of an array is read as f32 and written from
/// f32. Packed types write one nibble and keep the other, so two threads must not share a byte.
namespace moe64 {

struct f32_number {
  static float get(void const* data, index_t i) noexcept {
    return static_cast<float const*>(data)[i];
  }
  static void set(void* data, index_t i, float value) noexcept {
    static_cast<float*>(data)[i] = value;
  }
};

struct bf16_number {
  static float get(void const* data, index_t i) noexcept {
    return decode_bf16(static_cast<std::uint16_t const*>(data)[i]);
  }
  static void set(void* data, index_t i, float value) noexcept {
    static_cast<std::uint16_t*>(data)[i] = encode_bf16(value);
  }
};

struct f16_number {
  static float get(void const* data, index_t i) noexcept {
    return decode_float<f16_format>(static_cast<std::uint16_t const*>(data)[i]);
  }
  static void set(void* data, index_t i, float value) noexcept {
    static_cast<std::uint16_t*>(data)[i] =
        static_cast<std::uint16_t>(encode_float<f16_format>(value));
  }
};

template <float_format Format>
struct float8_number {
  static float get(void const* data, index_t i) noexcept {
    return tables::decoded<Format>[static_cast<std::uint8_t const*>(data)[i]];
  }
  static void set(void* data, index_t i, float value) noexcept {
    static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(encode_float<Format>(value));
  }
};
using e4m3_number = float8_number<e4m3_format>;
using e5m2_number = float8_number<e5m2_format>;

struct e8m0_number {
  static float get(void const* data, index_t i) noexcept {
    return decode_e8m0(static_cast<std::uint8_t const*>(data)[i]);
  }
  static void set(void* data, index_t i, float value) noexcept {
    static_cast<std::uint8_t*>(data)[i] = encode_e8m0_up(value);
  }
};

struct int8_number {
  static float get(void const* data, index_t i) noexcept {
    return static_cast<float>(static_cast<std::int8_t const*>(data)[i]);
  }
  static void set(void* data, index_t i, float value) noexcept {
    static_cast<std::int8_t*>(data)[i] =
        static_cast<std::int8_t>(round_to_integer(value, -128, 127));
  }
};

/// Two elements per byte, the even one in the lower nibble.
struct nibbles {
  static std::uint32_t get(void const* data, index_t i) noexcept {
    std::uint32_t const byte = static_cast<std::uint8_t const*>(data)[i / 2];
    return (i % 2 == 0 ? byte : byte >> 4) & 0xfU;
  }
  static void set(void* data, index_t i, std::uint32_t nibble) noexcept {
    auto* const byte = static_cast<std::uint8_t*>(data) + i / 2;
    std::uint32_t const kept = *byte & (i % 2 == 0 ? 0xf0U : 0x0fU);
    *byte = static_cast<std::uint8_t>(kept | (i % 2 == 0 ? nibble : nibble << 4));
  }
};

struct int4_number {
  static float get(void const* data, index_t i) noexcept {
    return static_cast<float>(decode_int4(nibbles::get(data, i)));
  }
  static void set(void* data, index_t i, float value) noexcept {
    nibbles::set(data, i, static_cast<std::uint8_t>(round_to_integer(value, -8, 7)) & 0xfU);
  }
};

struct fp4_number {
  static float get(void const* data, index_t i) noexcept {
    return tables::decoded<e2m1_format>[nibbles::get(data, i)];
  }
  static void set(void* data, index_t i, float value) noexcept {
    nibbles::set(data, i, encode_float<e2m1_format>(value));
  }
};

/// visitor(Number{}) with the number type of `type`: one switch, taken once per row or tile.
template <class Visitor>
decltype(auto) visit_number(dtype type, Visitor&& visitor) {
  switch (type) {
    case dtype::f32:
      return visitor(f32_number{});
    case dtype::bf16:
      return visitor(bf16_number{});
    case dtype::f16:
      return visitor(f16_number{});
    case dtype::e4m3:
      return visitor(e4m3_number{});
    case dtype::e5m2:
      return visitor(e5m2_number{});
    case dtype::e8m0:
      return visitor(e8m0_number{});
    case dtype::int8:
      return visitor(int8_number{});
    case dtype::int4:
      return visitor(int4_number{});
    case dtype::fp4:
      return visitor(fp4_number{});
    case dtype::int32:
    case dtype::int64:
    case dtype::uint8:
      break;
  }
  fail(errc::internal, "[number] {} does not hold numbers", name(type));
}

/// The largest code of a quantised type that `quantize` uses; integer types stay symmetric.
[[nodiscard]] constexpr float largest_code(dtype type) noexcept {
  switch (type) {
    case dtype::e4m3:
      return 448.0F;
    case dtype::e5m2:
      return 57344.0F;
    case dtype::int8:
      return 127.0F;
    case dtype::int4:
      return 7.0F;
    case dtype::fp4:
      return 6.0F;
    default:
      return 0.0F;
  }
}

}  // namespace moe64
