#pragma once

#include "cuda/kernels/gemm/sm90/swap_ab/factors.cuh"

#include <cute/arch/copy_sm90.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace moe64::cuda {

__device__ inline void await_group(int group) {
  if (group == 0) {
    cutlass::arch::NamedBarrier::arrive_and_wait(128, 0U);
  } else {
    cutlass::arch::NamedBarrier::arrive_and_wait(128, 1U);
  }
}

__device__ inline bool has_output_terms(sm90_gemm_parameters const& p, gemm_tile const& tile) {
  return p.row_scales[tile.part].data != nullptr || p.bias[tile.part].present() || p.poison_invalid;
}

/// By the 128 threads of a group, before its sums: so their code is there once, and not for every
/// number of rows. `first` is the first output of the terms in the tile.
template <int Outs>
__device__ void load_output_terms(sm90_gemm_parameters const& p, gemm_tile const& tile, int first,
                                  output_terms<Outs>& terms) {
  if (!has_output_terms(p, tile)) return;
  tensor_view const& bias = p.bias[tile.part];
  index_t const place = scale_place_of(p.expert_place[tile.part], tile.expert);
  float const none =
      p.poison_invalid ? -0.0F : 0.0F;  // -0: what would not be touched keeps its bits
#pragma unroll 1
  for (int i = thread_number() % 128; i < Outs; i += 128) {
    index_t const out = index_t{tile.out} + first + i;
    if (out >= p.n_part) return;
    terms.factor[i] = scale_row(p.row_scales[tile.part], place, out).at(0);
    terms.addend[i] = !bias.present()
                          ? none
                          : load_number(bias.type, bias.data, offset_of(bias, tile.expert, out));
  }
}

/// Two numbers of y.
template <bool Bf16>
__device__ __forceinline__ std::uint32_t packed(float a, float b) {
  if constexpr (Bf16) {
    __nv_bfloat162 const pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<std::uint32_t const*>(&pair);
  } else {
    __half2 const pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<std::uint32_t const*>(&pair);
  }
}
__device__ inline std::uint32_t packed(float a, float b, bool bf16) {
  return bf16 ? packed<true>(a, b) : packed<false>(a, b);
}

/// 8 outputs of a row at once: a store of a uint4 the compiler may take apart, into four that each
/// touch every sector again (docs/hopper.md).
__device__ __forceinline__ void write_whole_eight(std::uint16_t* to, uint4 const& eight) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(eight.x), "r"(eight.y),
               "r"(eight.z), "r"(eight.w)
               : "memory");
}

/// Outputs [out, out + 8) of a row, those that its part has.
__device__ inline void write_eight(sm90_gemm_parameters const& p, std::uint8_t const* from,
                                   std::uint16_t* to, int out) {
  if (p.y_vectors && out + 8 <= p.n_part) {
    write_whole_eight(to, *reinterpret_cast<uint4 const*>(from));
    return;
  }
#pragma unroll 1
  for (int j = 0; j < within(p.n_part - out, 8); ++j) {
    to[j] = reinterpret_cast<std::uint16_t const*>(from)[j];
  }
}

/// The sums of one thread of a group of four warps. The tensor cores give it, of the 64 outputs,
/// outputs 16 * warp + lane / 4 and that + 8, and of each 8 rows the two from lane % 4 * 2 on.
template <class Tile, int Rows>
class swap_ab_accumulators {
 public:
  __device__ swap_ab_accumulators(sm90_gemm_parameters const& p, swap_ab_memory<Tile>& memory,
                                  int group)
      : p_(p), memory_(memory), group_(group), lane_(lane_number()) {
#pragma unroll
    for (float& sum : sums_) sum = 0.0F;
  }

  /// Adds the products over one stage.
  __device__ __forceinline__ void add(ring_place<Tile::stages> const& at) {
    memory_.stages.await_filled(at);
    if constexpr (elements::scaled) {
      add_scaled(at.slot);
      release(at.slot);
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
    if constexpr (!elements::scaled) {
      cute::warpgroup_wait<0>();
      fence_registers(sums_);
      release(last_);
    }
  }

  /// Times the scales of outputs, plus bias, rounded once.
  __device__ void store(gemm_tile const& tile) {
    finish(tile);
    bool const bf16 = p_.y.type == dtype::bf16;
#pragma unroll
    for (int first = 0, turn = 0; first < Rows; first += Tile::rows_out, turn ^= 1) {
      std::uint8_t* const buffer = memory_.out[group_][turn];
      transpose(first, buffer, bf16);
      await_group(group_);
      write(tile, first, buffer);
    }
  }

 protected:
  static constexpr int row_bytes = 128;  ///< of y, in a buffer

  using elements = typename Tile::elements;

  [[nodiscard]] __device__ smem_descriptor weights(int slot) const {
    return smem_descriptor(cute::cast_smem_ptr_to_uint(memory_.stage[slot] + group_ * 64 * 128));
  }
  [[nodiscard]] __device__ smem_descriptor rows(int slot) const {
    return smem_descriptor(cute::cast_smem_ptr_to_uint(memory_.stage[slot] + Tile::weight_bytes));
  }

  /// While one group scales and adds, the tensor cores multiply for the other.
  __device__ __forceinline__ void add_scaled(int slot) {
    float const* const scales = memory_.factor[slot] + lane_ % 4 * Tile::factor_stride;
    float products[Rows / 2];
    fence_registers(products);
    cute::warpgroup_arrive();
    wgmma_stage<elements, Rows>(weights(slot), rows(slot), products, true);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
    fence_registers(products);
    promote(products, scales, sums_);
  }
  __device__ __forceinline__ void add_numbers(int slot) {
    fence_registers(sums_);
    cute::warpgroup_arrive();
    wgmma_stage<elements, Rows>(weights(slot), rows(slot), sums_, false);
    cute::warpgroup_commit_batch();
    fence_registers(sums_);
  }
  /// By the whole warp: it will not look at the stage again.
  __device__ void release(int slot) {
    __syncwarp();
    if (lane_ == 0) arrive(memory_.stages.used[slot]);
  }

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
    if (!has_output_terms(p_, tile)) return;
    await_group(group_);
    output_terms<64> const& terms = memory_.terms[group_];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const out = warp_number() % 4 * 16 + half * 8 + lane_ / 4;
      float const factor = terms.factor[out], addend = terms.addend[out];
#pragma unroll
      for (int i = half * 2; i < Rows / 2; i += 4) {
        sums_[i] = sums_[i] * factor + addend;
        sums_[i + 1] = sums_[i + 1] * factor + addend;
      }
    }
  }

  /// Where 8 outputs of a row lie in a buffer.
  [[nodiscard]] static __device__ int place(int row, int eight) {
    return row * row_bytes + (eight ^ (row % 8)) * 16;
  }

  /// Rows [first, first + rows_out) as rows of y.
  __device__ void transpose(int first, std::uint8_t* buffer, bool bf16) const {
#pragma unroll
    for (int r = first; r < first + Tile::rows_out && r < Rows; r += 16) {
      float const* const s = sums_ + r / 2;
      // Four 8 x 8 matrices: rows r and r + 8 by outputs 0 and 8 of the warp's 16.
      int const row = r - first + lane_ / 16 * 8 + lane_ % 8;
      int const eight = warp_number() % 4 * 2 + lane_ / 8 % 2;
      auto& to = *reinterpret_cast<cute::uint128_t*>(buffer + place(row, eight));
      if (r + 8 < Rows) {
        cute::SM90_U16x8_STSM_T::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16),
                                      packed(s[4], s[5], bf16), packed(s[6], s[7], bf16), to);
      } else {
        cute::SM90_U16x4_STSM_T::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16), to);
      }
    }
  }

  __device__ void write(gemm_tile const& tile, int first, std::uint8_t const* buffer) const {
    constexpr int eights = 8;
    int const thread = thread_number() % 128;
    auto* const y = static_cast<std::uint16_t*>(p_.y.data);
#pragma unroll
    for (int i = 0; i < Tile::rows_out * eights / 128; ++i) {
      int const row = (i * 128 + thread) / eights, eight = (i * 128 + thread) % eights;
      int const out = tile.out + group_ * 64 + eight * 8;
      if (first + row >= tile.rows || out >= p_.n_part) continue;
      index_t const at =
          (tile.row + index_t{first + row}) * p_.y.stride[0] + tile.part * p_.n_part + out;
      write_eight(p_, buffer + place(row, eight), y + at, out);
    }
  }

  sm90_gemm_parameters const& p_;
  swap_ab_memory<Tile>& memory_;
  int group_, lane_;
  int last_ = -1;  ///< stage whose products may not be done
  float sums_[Rows / 2];
};

}  // namespace moe64::cuda
