#pragma once

#include "cuda/kernels/grouped_gemm_wgmma.cuh"

#include <cute/arch/copy_sm90.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace moe64::cuda {

/// The sums of one thread of a group of four warps. The tensor cores give it, of each block of 64
/// outputs, outputs 16 * warp + lane / 4 and that + 8, and of each 8 rows the two from
/// lane % 4 * 2 on.
template <class Tile, int Rows>
class group_sums {
 public:
  __device__ group_sums(grouped_gemm_wgmma_parameters const& p, wgmma_memory<Tile>& memory,
                        int group)
      : p_(p), memory_(memory), group_(group), lane_(lane_number()) {
#pragma unroll
    for (auto& block : sums_) {
#pragma unroll
      for (float& sum : block) sum = 0.0F;
    }
  }

  /// Adds the products over one block of 128 along k. Stages are free as soon as the tensor cores
  /// have read them, factors after they were used.
  __device__ void add(ring_place<Tile::stages> const& stage,
                      ring_place<Tile::factor_slots> const& factors) {
    memory_.stages.await_filled(stage);
    std::uint32_t const weights = cute::cast_smem_ptr_to_uint(memory_.stage[stage.slot]);
    operand_place const right(weights + Tile::weight_bytes);
#pragma unroll
    for (int b = 0; b < Tile::blocks; ++b) {
      operand_place const left(weights + static_cast<unsigned>(block_of(b)) * 64 * 128);
      float products[Rows / 2];
      begin_product<Rows>(left, right, products);
      if (b == 0) memory_.factors.await_filled(factors);
      cute::warpgroup_wait<0>();
      if (b == Tile::blocks - 1 && lane_ == 0) arrive(memory_.stages.used[stage.slot]);
      float const* const scales =
          memory_.factor[factors.slot] +
          ((Tile::blocks == 2 ? group_ : 0) * 4 + lane_ % 4) * Tile::factor_stride;
      promote(products, scales, sums_[b]);
    }
    if (lane_ == 0) arrive(memory_.factors.used[factors.slot]);
  }

  /// Times the scales of outputs, plus bias, rounded once.
  __device__ void store(gemm_tile const& tile) {
    finish(tile);
    bool const bf16 = p_.y.type == dtype::bf16;
#pragma unroll
    for (int first = 0, turn = 0; first < Rows; first += Tile::rows_out, turn ^= 1) {
      std::uint8_t* const buffer = memory_.out[group_][turn];
      transpose(first, buffer, bf16);
      await_group();
      write(tile, first, buffer);
    }
  }

 private:
  static constexpr int row_bytes = 128 * Tile::blocks;  ///< of y, in a buffer

  /// Block b of this group among those of the tile.
  [[nodiscard]] __device__ int block_of(int b) const { return group_ * Tile::blocks + b; }

  static __device__ __forceinline__ void promote(float const (&products)[Rows / 2],
                                                 float const* scales, float (&sums)[Rows / 2]) {
#pragma unroll
    for (int j = 0; j < Rows / 8; j += 2) {
      float scale[4] = {};
      if (j + 1 < Rows / 8) {
        *reinterpret_cast<float4*>(scale) = *reinterpret_cast<float4 const*>(scales + 2 * j);
      } else {
        *reinterpret_cast<float2*>(scale) = *reinterpret_cast<float2 const*>(scales + 2 * j);
      }
#pragma unroll
      for (int i = 0; i < 8 && 4 * j + i < Rows / 2; ++i) {
        int const at = 4 * j + i;
        sums[at] = __fmaf_rn(products[at], scale[i / 4 * 2 + i % 2], sums[at]);
      }
    }
  }

  __device__ void finish(gemm_tile const& tile) {
    wgmma_scales const& scales = p_.row_scales[tile.part];
    tensor_view const& bias = p_.bias[tile.part];
    if (scales.data == nullptr && !bias.present()) return;
#pragma unroll
    for (int b = 0; b < Tile::blocks; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        index_t const out =
            tile.out + block_of(b) * 64 + warp_number() % 4 * 16 + half * 8 + lane_ / 4;
        float factor = 1.0F, addend = 0.0F;
        if (out < p_.n_part) {
          factor = scale_row(scales, tile.expert, out).at(0);
          if (bias.present())
            addend = load_number(bias.type, bias.data, offset_of(bias, tile.expert, out));
        }
#pragma unroll
        for (int i = half * 2; i < Rows / 2; i += 4) {
          if (scales.data != nullptr) sums_[b][i] *= factor, sums_[b][i + 1] *= factor;
          if (bias.present()) sums_[b][i] += addend, sums_[b][i + 1] += addend;
        }
      }
    }
  }

  /// Where 8 outputs of a row lie in a buffer.
  [[nodiscard]] static __device__ int place(int row, int eight) {
    return row * row_bytes + (eight ^ (row % 8)) * 16;
  }

  /// Rows [first, first + rows_out) as rows of y.
  __device__ void transpose(int first, std::uint8_t* buffer, bool bf16) const {
    auto const bits_of = [&](float a, float b) {
      __nv_bfloat162 const narrow = __floats2bfloat162_rn(a, b);
      __half2 const half = __floats2half2_rn(a, b);
      return bf16 ? *reinterpret_cast<std::uint32_t const*>(&narrow)
                  : *reinterpret_cast<std::uint32_t const*>(&half);
    };
#pragma unroll
    for (int b = 0; b < Tile::blocks; ++b) {
#pragma unroll
      for (int r = first; r < first + Tile::rows_out && r < Rows; r += 16) {
        float const* const s = sums_[b] + r / 2;
        // Four 8 x 8 matrices: rows r and r + 8 by outputs 0 and 8 of the warp's 16.
        int const row = r - first + lane_ / 16 * 8 + lane_ % 8;
        int const eight = b * 8 + warp_number() % 4 * 2 + lane_ / 8 % 2;
        auto& to = *reinterpret_cast<cute::uint128_t*>(buffer + place(row, eight));
        if (r + 8 < Rows) {
          cute::SM90_U16x8_STSM_T::copy(bits_of(s[0], s[1]), bits_of(s[2], s[3]),
                                        bits_of(s[4], s[5]), bits_of(s[6], s[7]), to);
        } else {
          cute::SM90_U16x4_STSM_T::copy(bits_of(s[0], s[1]), bits_of(s[2], s[3]), to);
        }
      }
    }
  }

  __device__ void await_group() const {
    // With constant numbers: otherwise all sixteen barriers are taken.
    if (group_ == 0) {
      cutlass::arch::NamedBarrier::arrive_and_wait(128, 0U);
    } else {
      cutlass::arch::NamedBarrier::arrive_and_wait(128, 1U);
    }
  }

  __device__ void write(gemm_tile const& tile, int first, std::uint8_t const* buffer) const {
    constexpr int eights = 8 * Tile::blocks;
    int const thread = thread_number() % 128;
    auto* const y = static_cast<std::uint16_t*>(p_.y.data);
#pragma unroll
    for (int i = 0; i < Tile::rows_out * eights / 128; ++i) {
      int const row = (i * 128 + thread) / eights, eight = (i * 128 + thread) % eights;
      int const out = tile.out + block_of(0) * 64 + eight * 8;
      if (first + row >= tile.rows || out >= p_.n_part) continue;
      index_t const at =
          (tile.row + index_t{first + row}) * p_.y.stride[0] + tile.part * p_.n_part + out;
      std::uint8_t const* const from = buffer + place(row, eight);
      if (p_.y_vectors && out + 8 <= p_.n_part) {
        *reinterpret_cast<uint4*>(y + at) = *reinterpret_cast<uint4 const*>(from);
      } else {
        for (int j = 0; j < within(p_.n_part - out, 8); ++j) {
          y[at + j] = reinterpret_cast<std::uint16_t const*>(from)[j];
        }
      }
    }
  }

  grouped_gemm_wgmma_parameters const& p_;
  wgmma_memory<Tile>& memory_;
  int group_, lane_;
  float sums_[Tile::blocks][Rows / 2];
};

}  // namespace moe64::cuda
