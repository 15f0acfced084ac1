#pragma once

#include "core/float8.hpp"
#include "core/offset.hpp"
#include "cuda/kernels/device/number.cuh"

/// Scales: how they are read and how the scale of a block is made.
namespace moe64::cuda {

/// The global scale of one expert; without one nothing changes.
struct global_factor {
  bool present;
  bool divides;
  float value;

  __device__ static global_factor of(tensor_view const& global, bool divides, index_t expert) {
    bool const present = global.present();
    return {present, divides, present ? element<float>(global, expert) : 1.0F};
  }
  /// The factor of codes whose block scale is `scale`.
  __device__ float applied_to(float scale) const {
    if (!present) return scale;
    return divides ? scale / value : scale * value;
  }
  /// The block scale of codes whose factor should be `factor`.
  __device__ float taken_from(float factor) const {
    if (!present) return factor;
    return divides ? factor * value : factor / value;
  }
};

/// Block scale (grid_row, grid_col) of matrix `expert`.
__device__ inline float load_scale(tensor_view const& scales, index_t expert, index_t grid_row,
                                   index_t grid_col) {
  index_t const offset = offset_of(scales, expert, grid_row, grid_col);
  if (scales.type == dtype::f32) return static_cast<float const*>(scales.data)[offset];
  return load_number(scales.type, scales.data, offset);
}

/// A scale as it is stored and as it will be read.
struct stored_scale {
  std::uint32_t code;
  float value;
};

__device__ inline stored_scale round_scale(dtype type, float wanted) {
  switch (type) {
    case dtype::bf16: {
      std::uint16_t const code = encode_bf16(wanted);
      return {code, decode_bf16(code)};
    }
    case dtype::f16: {
      std::uint32_t const code = encode_float<f16_format>(wanted);
      return {code, decode_float<f16_format>(code)};
    }
    case dtype::e4m3: {
      std::uint32_t const code = encode_float<e4m3_format>(wanted);
      return {code, decode_float<e4m3_format>(code)};
    }
    case dtype::e8m0: {
      std::uint8_t const code = encode_e8m0_up(wanted);
      return {code, decode_e8m0(code)};
    }
    default:
      return {__float_as_uint(wanted), wanted};
  }
}

__device__ inline void store_scale(tensor_view const& scales, index_t offset, std::uint32_t code) {
  switch (bits(scales.type)) {
    case 8:
      static_cast<std::uint8_t*>(scales.data)[offset] =
          static_cast<std::uint8_t>(code);  // narrow-ok: codes of 8 bits
      return;
    case 16:
      static_cast<std::uint16_t*>(scales.data)[offset] =
          static_cast<std::uint16_t>(code);  // narrow-ok: codes of 16 bits
      return;
    default:
      static_cast<std::uint32_t*>(scales.data)[offset] = code;
  }
}

/// The bits of infinity, and those of the NaN that a block gets that has infinity or NaN.
inline constexpr std::uint32_t infinity_bits = 0x7f800000U;
inline constexpr std::uint32_t nan_bits = 0x7fc00000U;

/// The scale of a block whose largest magnitude has the bits `largest`: largest / largest code, but
/// never zero; 1 for a block of zeros, NaN for one that has infinity or NaN.
__device__ inline stored_scale scale_for(dtype type, std::uint32_t largest, float largest_code,
                                         global_factor const& global) {
  if (largest >= infinity_bits) return round_scale(type, __uint_as_float(nan_bits));
  float wanted = 1.0F;
  if (largest != 0) wanted = global.taken_from(__uint_as_float(largest) / largest_code);
  stored_scale const rounded = round_scale(type, wanted);
  if (rounded.value != 0.0F) return rounded;
  // In every type that can round to zero the smallest positive value has the code 1.
  switch (type) {
    case dtype::bf16:
      return {1, decode_bf16(1)};
    case dtype::f16:
      return {1, decode_float<f16_format>(1)};
    case dtype::e4m3:
      return {1, decode_float<e4m3_format>(1)};
    default:
      return {1, __uint_as_float(1)};
  }
}

/// How many of `rows` exist: no more than the operand has, whatever live_rows says.
__device__ inline index_t count_rows(tensor_view const& live_rows, index_t rows) {
  if (!live_rows.present()) return rows;
  index_t const live = element<index_t>(live_rows, 0);
  return live < 0 ? 0 : live > rows ? rows : live;
}

}  // namespace moe64::cuda
