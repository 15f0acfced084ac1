#pragma once

#include "core/float8.hpp"
#include "core/offset.hpp"
#include "moe64/dtype.hpp"

#include <cstdint>

/// Element i of an array read as f32 and written from f32, whatever its type: a uniform switch. The
/// codecs are those of the host, so the bits are too.
namespace moe64::cuda {

__device__ inline std::uint32_t load_nibble(void const* data, index_t i) {
  std::uint32_t const byte = static_cast<std::uint8_t const*>(data)[i / 2];
  return (i % 2 == 0 ? byte : byte >> 4) & 0xfU;
}

__device__ inline float load_number(dtype type, void const* data, index_t i) {
  switch (type) {
    case dtype::f32:
      return static_cast<float const*>(data)[i];
    case dtype::bf16:
      return decode_bf16(static_cast<std::uint16_t const*>(data)[i]);
    case dtype::f16:
      return decode_float<f16_format>(static_cast<std::uint16_t const*>(data)[i]);
    case dtype::e4m3:
      return decode_float<e4m3_format>(static_cast<std::uint8_t const*>(data)[i]);
    case dtype::e5m2:
      return decode_float<e5m2_format>(static_cast<std::uint8_t const*>(data)[i]);
    case dtype::e8m0:
      return decode_e8m0(static_cast<std::uint8_t const*>(data)[i]);
    case dtype::int8:
      return static_cast<float>(static_cast<std::int8_t const*>(data)[i]);
    case dtype::int4:
      return static_cast<float>(decode_int4(load_nibble(data, i)));
    case dtype::fp4:
      return decode_float<e2m1_format>(load_nibble(data, i));
    default:
      return 0.0F;
  }
}

/// f32, bf16 and f16: what operations write.
__device__ inline void store_float(dtype type, void* data, index_t i, float value) {
  switch (type) {
    case dtype::f32:
      static_cast<float*>(data)[i] = value;
      return;
    case dtype::bf16:
      static_cast<std::uint16_t*>(data)[i] = encode_bf16(value);
      return;
    default:
      static_cast<std::uint16_t*>(data)[i] =
          static_cast<std::uint16_t>(encode_float<f16_format>(value));
  }
}

/// Element i of a tensor [n] whose type is known.
template <class T>
__device__ inline T& element(tensor_view const& tensor, index_t i) {
  return static_cast<T*>(tensor.data)[i * tensor.stride[0]];
}

/// Element c of a row.
__device__ inline float load_number(row_view const& row, index_t c) {
  return load_number(row.type, row.data, row.offset + c * row.stride);
}
__device__ inline void store_float(row_view const& row, index_t c, float value) {
  store_float(row.type, row.data, row.offset + c * row.stride, value);
}

}  // namespace moe64::cuda
