#pragma once

#include "cuda/kernels/device/encode_fp8.cuh"
#include "cuda/kernels/quantize/quantize.hpp"

/// What the reference kernels that quantise share: any strides and types, an element at a time.
namespace moe64::cuda {

/// The largest of all threads of the CTA, for the first warp.
__device__ inline std::uint32_t largest_of_cta(std::uint32_t mine) {
  __shared__ std::uint32_t of_warp[32];
  __syncthreads();  // the last use of of_warp
  std::uint32_t const largest = __reduce_max_sync(0xffffffffU, mine);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  return __reduce_max_sync(0xffffffffU, threadIdx.x < blockDim.x / 32 ? of_warp[threadIdx.x] : 0);
}

/// The code of one value, in the lower bits.
__device__ inline std::uint32_t code_of(dtype type, float value) {
  switch (type) {
    case dtype::e4m3:
      return encode_float<e4m3_format>(value);
    case dtype::e5m2:
      return encode_float<e5m2_format>(value);
    case dtype::fp4:
      return encode_float<e2m1_format>(value);
    case dtype::int8:
      return low_bits(round_to_integer(value, -128, 127), 0xffU);
    default:
      return low_bits(round_to_integer(value, -8, 7), 0xfU);
  }
}

/// One byte of codes: one of 8 bits or two of 4. An odd last column keeps the other half of its
/// byte.
__device__ inline void store_codes(tensor_view const& values, index_t offset, std::uint32_t codes,
                                   bool keeps_upper_half) {
  auto* const byte = static_cast<std::uint8_t*>(values.data) + offset * bits(values.type) / 8;
  if (keeps_upper_half) codes |= *byte & 0xf0U;
  *byte = static_cast<std::uint8_t>(codes);  // narrow-ok: 8 bits
}

/// A value as it is read again after it was written as `type`.
__device__ inline float rounded_to(dtype type, float value) {
  if (type == dtype::bf16) return decode_bf16(encode_bf16(value));
  if (type == dtype::f16) return decode_float<f16_format>(encode_float<f16_format>(value));
  return value;
}

/// Codes and scales of rows [0, rows), a scale per row or group, a row per CTA at a time.
/// element(row, col, exists) is f32, already rounded to the type that it would have in memory; all
/// lanes of a warp call it together, past the last column too.
template <class Element>
__device__ void quantize_rows_of(quantize_target const& t, index_t rows, Element const& element) {
  index_t const cols = t.values.extent[2], threads = blockDim.x;
  index_t const per_byte = 8 / bits(t.values.type);
  global_factor const no_global = {};
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (index_t begin = 0, grid_col = 0; begin < cols; begin += t.block_cols, ++grid_col) {
      index_t const end = min(begin + t.block_cols, cols);
      std::uint32_t largest = 0;
      for (index_t first = begin; first < end; first += threads) {
        index_t const col = first + threadIdx.x;
        float const x = element(row, col, col < end);
        if (col < end) largest = max(largest, __float_as_uint(x) & 0x7fffffffU);
      }
      largest = largest_of_cta(largest);
      if (threadIdx.x != 0) continue;
      store_scale(t.scales, offset_of(t.scales, 0, row, grid_col),
                  scale_for(t.scales.type, largest, t.largest_code, no_global).code);
    }
    __syncthreads();  // the scales of this row are there
    for (index_t first = 0; first < cols; first += threads * per_byte) {
      index_t const col = first + threadIdx.x * per_byte;
      std::uint32_t codes = 0;
      for (index_t n = 0; n < per_byte; ++n) {
        float const x = element(row, col + n, col + n < cols);
        if (col + n >= cols) continue;
        float const factor = load_scale(t.scales, 0, row, (col + n) / t.block_cols);
        codes |= code_of(t.values.type, bounded_quotient(x, factor, t.largest_code)) << (4 * n);
      }
      if (col >= cols) continue;
      store_codes(t.values, offset_of(t.values, 0, row, col), codes, col + per_byte > cols);
    }
  }
}

}  // namespace moe64::cuda
