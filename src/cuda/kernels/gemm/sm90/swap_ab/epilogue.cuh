#pragma once

#include "cuda/kernels/gemm/sm90/swap_ab/accumulators.cuh"
#include "cuda/kernels/gemm/sm90/tma.cuh"

#include <cute/arch/copy_sm90.hpp>
#include <cutlass/arch/barrier.h>

/// The epilogue of swapAB tiles, by a consumer warpgroup: row scales and bias, one rounding,
/// transposed through shared memory by STSM, since its accumulators are 64 outputs x Rows rows, and
/// stores of 16 bytes.
namespace moe64::cuda {

/// Named barrier of a consumer warpgroup.
__device__ inline void sync_warpgroup(int warpgroup) {
  if (warpgroup == 0) {
    cutlass::arch::NamedBarrier::arrive_and_wait(128, 0U);
  } else {
    cutlass::arch::NamedBarrier::arrive_and_wait(128, 1U);
  }
}

template <class Tile, int Rows>
__device__ void swap_ab_accumulators<Tile, Rows>::store(gemm_tile const& tile) {
  apply_terms(tile);
  bool const bf16 = p_.y.type == dtype::bf16;
#pragma unroll
  for (int first = 0, buffer = 0; first < Rows; first += Tile::y_rows, buffer ^= 1) {
    std::uint8_t* const y = memory_.y[warpgroup_][buffer];
    stage_y(first, y, bf16);
    sync_warpgroup(warpgroup_);
    store_y(tile, first, y);
  }
}

template <class Tile, int Rows>
__device__ void swap_ab_accumulators<Tile, Rows>::apply_terms(gemm_tile const& tile) {
  if (!has_output_terms(p_, tile)) return;
  sync_warpgroup(warpgroup_);
  output_terms<64> const& terms = memory_.terms[warpgroup_];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int const out = warp_number() % 4 * 16 + half * 8 + lane_ / 4;
    float const factor = terms.factor[out], addend = terms.addend[out];
#pragma unroll
    for (int i = half * 2; i < Rows / 2; i += 4) {
      acc_[i] = acc_[i] * factor + addend;
      acc_[i + 1] = acc_[i + 1] * factor + addend;
    }
  }
}

/// Rows [first, first + y_rows) as rows of y.
template <class Tile, int Rows>
__device__ void swap_ab_accumulators<Tile, Rows>::stage_y(int first, std::uint8_t* buffer,
                                                          bool bf16) const {
#pragma unroll
  for (int r = first; r < first + Tile::y_rows && r < Rows; r += 16) {
    float const* const s = acc_ + r / 2;
    // Four 8 x 8 matrices: rows r and r + 8 by outputs 0 and 8 of the warp's 16.
    int const row = r - first + lane_ / 16 * 8 + lane_ % 8;
    int const vec8 = warp_number() % 4 * 2 + lane_ / 8 % 2;
    auto& to = *reinterpret_cast<cute::uint128_t*>(buffer + swizzled_place(row, vec8));
    if (r + 8 < Rows) {
      cute::SM90_U16x8_STSM_T::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16),
                                    packed(s[4], s[5], bf16), packed(s[6], s[7], bf16), to);
    } else {
      cute::SM90_U16x4_STSM_T::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16), to);
    }
  }
}

template <class Tile, int Rows>
__device__ void swap_ab_accumulators<Tile, Rows>::store_y(gemm_tile const& tile, int first,
                                                          std::uint8_t const* buffer) const {
  constexpr int vec8s = 8;  // of a row
  int const thread = thread_number() % 128;
  auto* const y = static_cast<std::uint16_t*>(p_.y.data);
#pragma unroll
  for (int i = 0; i < Tile::y_rows * vec8s / 128; ++i) {
    int const row = (i * 128 + thread) / vec8s, vec8 = (i * 128 + thread) % vec8s;
    int const out = tile.out + warpgroup_ * 64 + vec8 * 8;
    if (first + row >= tile.rows || out >= p_.n_part) continue;
    index_t const at =
        (tile.row + index_t{first + row}) * p_.y.stride[0] + tile.part * p_.n_part + out;
    store_outputs(p_, buffer + swizzled_place(row, vec8), y + at, out);
  }
}

}  // namespace moe64::cuda
