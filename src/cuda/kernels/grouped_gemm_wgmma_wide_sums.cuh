#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_wide.cuh"

namespace moe64::cuda {

/// The sums of one thread of a group of four warps: of `Whole` blocks of 64 rows by all outputs of
/// the tile; of a block that both groups share (`Half`) by 64 outputs of each; and of the rest of
/// the rows (`Rest`), which are the right operand, by 64 outputs of each.
///
/// Of 64 x n sums the tensor cores give a thread, on the left, 16 * warp + lane / 4 and that + 8,
/// and on the right, of each 8, the two from lane % 4 * 2 on.
template <class Tile, int Whole, bool Half, bool Rest>
class wide_sums {
 public:
  __device__ wide_sums(grouped_gemm_wgmma_parameters const& p, wide_memory<Tile>& memory, int group)
      : p_(p), memory_(memory), group_(group), lane_(lane_number()), warp_(warp_number() % 4) {
#pragma unroll
    for (auto& block : whole_) zero(block);
    zero(half_);
    zero(rest_);
  }

  /// Adds the products over one stage.
  __device__ __forceinline__ void add(ring_place<Tile::stages> const& at) {
    memory_.stages.await_filled(at);
    if constexpr (numbers::scaled) {
      add_scaled(at.slot);
    } else {
      add_numbers(at.slot);
      // All but the products that have just begun are done.
      cute::warpgroup_wait<1>();
      if (last_ >= 0) release(last_);
      last_ = at.slot;
    }
  }
  /// After the last stage.
  __device__ __forceinline__ void end() {
    if constexpr (!numbers::scaled) {
      cute::warpgroup_wait<0>();
      fence_all();
      release(last_);
    }
  }

  /// Times the scales of outputs, plus bias, rounded once.
  __device__ void store(gemm_tile const& tile) {
    if (has_output_terms(p_, tile)) await_group(group_);
#pragma unroll
    for (int i = 0; i < Whole; ++i) {
      store_rows<Tile::outs>(tile, (group_ * Whole + i) * Tile::block, 0, whole_[i]);
    }
    if constexpr (Half) store_rows<64>(tile, 2 * Whole * Tile::block, group_ * 64, half_);
    if constexpr (Rest) store_rest(tile);
  }

 private:
  using numbers = typename Tile::numbers;
  static constexpr int blocks = 2 * Whole + (Half ? 1 : 0);

  template <int Count>
  static __device__ __forceinline__ void zero(float (&sums)[Count]) {
#pragma unroll
    for (float& sum : sums) sum = 0.0F;
  }
  __device__ __forceinline__ void fence_all() {
#pragma unroll
    for (auto& block : whole_) fence_registers(block);
    fence_registers(half_);
    fence_registers(rest_);
  }

  [[nodiscard]] __device__ operand_place weights(int slot, int out) const {
    return operand_place(cute::cast_smem_ptr_to_uint(memory_.stage[slot] + out * 128));
  }
  [[nodiscard]] __device__ operand_place rows(int slot, int row) const {
    return operand_place(
        cute::cast_smem_ptr_to_uint(memory_.stage[slot] + Tile::weight_bytes + row * 128));
  }
  /// By the whole warp: it will not look at the stage again.
  __device__ void release(int slot) {
    __syncwarp();
    arrive_at(memory_.stages.used[slot], lane_, lane_ < Tile::cluster);
  }

  /// While one group scales and adds, the tensor cores multiply for the other.
  __device__ __forceinline__ void add_scaled(int slot) {
#pragma unroll
    for (int i = 0; i < Whole; ++i) {
      add_rows<Tile::outs>(slot, (group_ * Whole + i) * Tile::block, 0,
                           i + 1 == Whole && !Half && !Rest, whole_[i]);
    }
    if constexpr (Half) add_rows<64>(slot, 2 * Whole * Tile::block, group_ * 64, !Rest, half_);
    if constexpr (Rest) add_rest(slot);
  }
  template <int Outs>
  __device__ __forceinline__ void add_rows(int slot, int row, int out, bool last,
                                           float (&sums)[Outs / 2]) {
    float products[Outs / 2];
    float const* const factors = memory_.factor[slot] + row + warp_ * 16 + lane_ / 4;
    float const upper = factors[0], lower = factors[8];
    multiply<Outs>(rows(slot, row), weights(slot, out), products);
    if (last) release(slot);
#pragma unroll
    for (int i = 0; i < Outs / 2; ++i) {
      sums[i] = __fmaf_rn(products[i], i % 4 < 2 ? upper : lower, sums[i]);
    }
  }
  __device__ __forceinline__ void add_rest(int slot) {
    float products[Tile::rest / 2], factors[Tile::rest / 4];
#pragma unroll
    for (int j = 0; j < Tile::rest / 8; ++j) {
      auto const* const from = memory_.factor[slot] + blocks * Tile::block + j * 8 + lane_ % 4 * 2;
      *reinterpret_cast<float2*>(factors + 2 * j) = *reinterpret_cast<float2 const*>(from);
    }
    multiply<Tile::rest>(weights(slot, group_ * 64), rows(slot, blocks * Tile::block), products);
    release(slot);
#pragma unroll
    for (int i = 0; i < Tile::rest / 2; ++i) {
      rest_[i] = __fmaf_rn(products[i], factors[i / 4 * 2 + i % 2], rest_[i]);
    }
  }
  template <int Right>
  static __device__ __forceinline__ void multiply(operand_place const& left,
                                                  operand_place const& right,
                                                  float (&products)[Right / 2]) {
    fence_registers(products);
    cute::warpgroup_arrive();
    multiply_stage<numbers, Right>(left, right, products, true);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
    fence_registers(products);
  }

  __device__ __forceinline__ void add_numbers(int slot) {
    fence_all();
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < Whole; ++i) {
      multiply_stage<numbers, Tile::outs>(rows(slot, (group_ * Whole + i) * Tile::block),
                                          weights(slot, 0), whole_[i], false);
    }
    if constexpr (Half) {
      multiply_stage<numbers, 64>(rows(slot, 2 * Whole * Tile::block), weights(slot, group_ * 64),
                                  half_, false);
    }
    if constexpr (Rest) {
      multiply_stage<numbers, Tile::rest>(weights(slot, group_ * 64),
                                          rows(slot, blocks * Tile::block), rest_, false);
    }
    cute::warpgroup_commit_batch();
    fence_all();
  }

  [[nodiscard]] __device__ std::uint16_t* y_at(gemm_tile const& tile, int row, int out) const {
    return static_cast<std::uint16_t*>(p_.y.data) + (tile.row + index_t{row}) * p_.y.stride[0] +
           tile.part * p_.n_part + out;
  }

  /// 64 rows from `row` of the tile on, outputs from `out` of it on.
  template <int Outs>
  __device__ void store_rows(gemm_tile const& tile, int row, int out, float (&sums)[Outs / 2]) {
    if (has_output_terms(p_, tile)) {
#pragma unroll
      for (int i = 0; i < Outs / 2; ++i) {
        sums[i] = finished(sums[i], out + i / 4 * 8 + lane_ % 4 * 2 + i % 2);
      }
    }
    bool const bf16 = p_.y.type == dtype::bf16;
    std::uint8_t* const buffer = memory_.out[group_ * 4 + warp_];
    row += warp_ * 16;
#pragma unroll
    for (int first = 0; first < Outs; first += Tile::out_cols) {
      // Four 8 x 8 matrices: rows 0 and 8 of outputs 0, then of outputs 8.
      std::uint8_t* const to = buffer + lane_ % 16 * Tile::out_stride + lane_ / 16 * 16;
#pragma unroll
      for (int j = 0; j < Tile::out_cols; j += 16) {
        float const* const s = sums + (first + j) / 2;
        cute::SM90_U32x4_STSM_N::copy(
            packed(s[0], s[1], bf16), packed(s[2], s[3], bf16), packed(s[4], s[5], bf16),
            packed(s[6], s[7], bf16), *reinterpret_cast<cute::uint128_t*>(to + j * 2));
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int const r = (i * 32 + lane_) / 4, eight = lane_ % 4;
        int const at = tile.out + out + first + eight * 8;
        if (row + r >= tile.rows || at >= p_.n_part) continue;
        write_eight(p_, buffer + r * Tile::out_stride + eight * 16, y_at(tile, row + r, at), at);
      }
      __syncwarp();
    }
  }
  __device__ void store_rest(gemm_tile const& tile) {
    if (has_output_terms(p_, tile)) {
#pragma unroll
      for (int i = 0; i < Tile::rest / 2; ++i) {
        rest_[i] = finished(rest_[i], group_ * 64 + warp_ * 16 + i % 4 / 2 * 8 + lane_ / 4);
      }
    }
    bool const bf16 = p_.y.type == dtype::bf16;
    std::uint8_t* const buffer = memory_.out[group_ * 4 + warp_];
    int const row = blocks * Tile::block;
#pragma unroll
    for (int first = 0; first < Tile::rest; first += 16) {
      // Four 8 x 8 matrices, transposed: rows 0 and 8 by outputs 0 and 8 of the warp's 16.
      float const* const s = rest_ + first / 2;
      std::uint8_t* const to =
          buffer + (lane_ / 16 * 8 + lane_ % 8) * Tile::out_stride + lane_ / 8 % 2 * 16;
      cute::SM90_U16x8_STSM_T::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16),
                                    packed(s[4], s[5], bf16), packed(s[6], s[7], bf16),
                                    *reinterpret_cast<cute::uint128_t*>(to));
      __syncwarp();
      int const r = first + lane_ / 2, eight = lane_ % 2;
      int const at = tile.out + group_ * 64 + warp_ * 16 + eight * 8;
      if (row + r < tile.rows && at < p_.n_part) {
        write_eight(p_, buffer + lane_ / 2 * Tile::out_stride + eight * 16,
                    y_at(tile, row + r, at), at);
      }
      __syncwarp();
    }
  }
  [[nodiscard]] __device__ float finished(float sum, int out) const {
    return sum * memory_.terms[group_].factor[out] + memory_.terms[group_].addend[out];
  }

  grouped_gemm_wgmma_parameters const& p_;
  wide_memory<Tile>& memory_;
  int group_, lane_, warp_;
  int last_ = -1;  ///< stage whose products may not be done
  float whole_[Whole == 0 ? 1 : Whole][Tile::outs / 2];
  float half_[32];
  float rest_[Tile::rest / 2];
};

}  // namespace moe64::cuda
