#pragma once

#include "cpu/simd/avx512.hpp"
#include "moe64/index.hpp"

#include <cstdint>

/// The matrix tiles of AMX: eight registers of 16 rows by 64 bytes. One instruction adds the
/// product of a tile of 16 x 32 bf16 and a tile of 32 x 16 bf16 to 16 x 16 f32 accumulators.
#define MOE64_BEGIN_AMX_BF16                                                                      \
  HWY_PUSH_ATTRIBUTES(                                                                            \
      "avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512bf16," \
      "amx-tile,amx-bf16")
#define MOE64_END_AMX_BF16 HWY_POP_ATTRIBUTES

MOE64_BEGIN_AMX_BF16

namespace moe64::cpu::amx {

/// Columns of bf16 in one row of a tile, and rows of a tile.
inline constexpr index_t tile_depth = 32;
inline constexpr index_t tile_rows = 16;

/// All tiles at full size while it lives.
class tiles {
 public:
  tiles() {
    struct alignas(64) configuration {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const full;
    static_assert(sizeof(full) == 64);
    _tile_loadconfig(&full);
  }
  ~tiles() { _tile_release(); }
  tiles(tiles const&) = delete;
  tiles& operator=(tiles const&) = delete;
};

/// acc [16, 64] f32 (four tiles side by side, rows `acc_stride` floats apart) += left [16, depth]
/// bf16, rows `left_stride` numbers apart, times right [depth / 2, 64] pairs of bf16,
/// `right_stride` pairs apart. depth is a multiple of 32; `tiles_wide` in 1..4 says how many of the
/// four are wanted.
inline void multiply(float* acc, index_t acc_stride, std::uint16_t const* left, index_t left_stride,
                     std::uint32_t const* right, index_t right_stride, index_t depth,
                     index_t tiles_wide) {
  auto const bytes = [](index_t numbers, index_t size) { return numbers * size; };
  index_t const acc_row = bytes(acc_stride, sizeof(float));
  index_t const left_row = bytes(left_stride, sizeof(std::uint16_t));
  index_t const right_row = bytes(right_stride, sizeof(std::uint32_t));
  _tile_loadd(0, acc, acc_row);
  if (tiles_wide > 1) _tile_loadd(1, acc + 16, acc_row);
  if (tiles_wide > 2) _tile_loadd(2, acc + 32, acc_row);
  if (tiles_wide > 3) _tile_loadd(3, acc + 48, acc_row);
  for (index_t k = 0; k < depth; k += tile_depth) {
    std::uint32_t const* const pairs = right + k / 2 * right_stride;
    _tile_loadd(4, left + k, left_row);
    _tile_loadd(5, pairs, right_row);
    _tile_dpbf16ps(0, 4, 5);
    if (tiles_wide > 1) {
      _tile_loadd(6, pairs + 16, right_row);
      _tile_dpbf16ps(1, 4, 6);
    }
    if (tiles_wide > 2) {
      _tile_loadd(7, pairs + 32, right_row);
      _tile_dpbf16ps(2, 4, 7);
    }
    if (tiles_wide > 3) {
      _tile_loadd(5, pairs + 48, right_row);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_stored(0, acc, acc_row);
  if (tiles_wide > 1) _tile_stored(1, acc + 16, acc_row);
  if (tiles_wide > 2) _tile_stored(2, acc + 32, acc_row);
  if (tiles_wide > 3) _tile_stored(3, acc + 48, acc_row);
}

/// out [16, 16] pairs = the transpose of in [16, 16] pairs; rows `out_stride` apart.
inline void transpose(__m512i const (&in)[16], std::uint32_t* out, index_t out_stride) {
  __m512i a[16];
  __m512i b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // b[4 q + c] holds, in its 128-bit lane l, column 4 l + c of rows 4 q ... 4 q + 3.
  for (int c = 0; c < 4; ++c) {
    __m512i const low01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);   // lanes 0, 2
    __m512i const high01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);  // lanes 1, 3
    __m512i const low23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    __m512i const high23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    auto const store = [&](int column, __m512i row) {
      _mm512_storeu_si512(out + index_t{column} * out_stride, row);
    };
    store(c, _mm512_shuffle_i32x4(low01, low23, 0x88));
    store(8 + c, _mm512_shuffle_i32x4(low01, low23, 0xdd));
    store(4 + c, _mm512_shuffle_i32x4(high01, high23, 0x88));
    store(12 + c, _mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

}  // namespace moe64::cpu::amx

MOE64_END_AMX_BF16
