#pragma once

#include "cuda/kernels/gemm/sm90/swap_ab/tile.cuh"

/// The main loop of swapAB tiles.
namespace moe64::cuda {

/// The accumulators of one thread of a consumer warpgroup for up to `Rows` rows. WGMMA gives it, of
/// the warpgroup's 64 outputs, outputs 16 * warp + lane / 4 and that + 8, and of each 8 rows the
/// two from lane % 4 * 2 on.
template <class Tile, int Rows>
class swap_ab_accumulators {
 public:
  __device__ swap_ab_accumulators(sm90_gemm_parameters const& p, swap_ab_memory<Tile>& memory,
                                  int warpgroup)
      : p_(p), memory_(memory), warpgroup_(warpgroup), lane_(lane_number()) {
#pragma unroll
    for (float& value : acc_) value = 0.0F;
  }

  /// Adds the products over one stage.
  __device__ __forceinline__ void add(ring_place<Tile::stages> const& at) {
    memory_.stages.await_filled(at);
    if constexpr (elements::scaled) {
      add_promoted(at.slot);
      release(at.slot);
    } else {
      add_in_place(at.slot);
      // All but the WGMMAs that were just issued have ended.
      cute::warpgroup_wait<1>();
      if (last_ >= 0) release(last_);
      last_ = at.slot;
    }
  }
  /// After the last stage.
  __device__ __forceinline__ void end() {
    if constexpr (!elements::scaled) {
      cute::warpgroup_wait<0>();
      fence_registers(acc_);
      release(last_);
    }
  }

  /// The epilogue (epilogue.cuh).
  __device__ void store(gemm_tile const& tile);

 protected:
  using elements = typename Tile::elements;

  /// Operand A, operand B.
  [[nodiscard]] __device__ smem_descriptor weights(int slot) const {
    return smem_descriptor(
        cute::cast_smem_ptr_to_uint(memory_.stage[slot] + warpgroup_ * 64 * 128));
  }
  [[nodiscard]] __device__ smem_descriptor rows(int slot) const {
    return smem_descriptor(cute::cast_smem_ptr_to_uint(memory_.stage[slot] + Tile::weight_bytes));
  }

  /// W8A8. While one warpgroup promotes, the WGMMA of the other runs.
  __device__ __forceinline__ void add_promoted(int slot) {
    float const* const scales = memory_.factor[slot] + lane_ % 4 * Tile::factor_stride;
    float products[Rows / 2];
    fence_registers(products);
    cute::warpgroup_arrive();
    wgmma_stage<elements, Rows>(weights(slot), rows(slot), products, true);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
    fence_registers(products);
    promote(products, scales, acc_);
  }
  /// bf16 and f16.
  __device__ __forceinline__ void add_in_place(int slot) {
    fence_registers(acc_);
    cute::warpgroup_arrive();
    wgmma_stage<elements, Rows>(weights(slot), rows(slot), acc_, false);
    cute::warpgroup_commit_batch();
    fence_registers(acc_);
  }
  /// By the whole warp, which will not look at the stage again.
  __device__ void release(int slot) {
    __syncwarp();
    if (lane_ == 0) arrive(memory_.stages.used[slot]);
  }

  static __device__ __forceinline__ void promote(float const (&products)[Rows / 2],
                                                 float const* scales, float (&acc)[Rows / 2]) {
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
        acc[at] = __fmaf_rn(products[at], scale[i / 4 * 2 + i % 2], acc[at]);
      }
    }
  }

  __device__ void apply_terms(gemm_tile const& tile);
  __device__ void stage_y(int first, std::uint8_t* buffer, bool bf16) const;
  __device__ void store_y(gemm_tile const& tile, int first, std::uint8_t const* buffer) const;

  sm90_gemm_parameters const& p_;
  swap_ab_memory<Tile>& memory_;
  int warpgroup_, lane_;
  int last_ = -1;  ///< stage whose WGMMAs may not have ended
  float acc_[Rows / 2];
};

/// A tile, by the code for its rows rounded up to 8.
template <class Tile, int Rows = 8>
__device__ __forceinline__ void compute_tile(sm90_gemm_parameters const& p,
                                             swap_ab_memory<Tile>& memory, gemm_tile const& tile,
                                             int k_stages, ring_place<Tile::stages>& at) {
  if constexpr (Rows < Tile::rows) {
    if (tile.rows > Rows) return compute_tile<Tile, Rows + 8>(p, memory, tile, k_stages, at);
  }
  swap_ab_accumulators<Tile, Rows> acc(p, memory, warp_number() / 4 - 1);
#pragma unroll 1
  for (int k = 0; k < k_stages; ++k, at.next()) acc.add(at);
  acc.end();
  acc.store(tile);
}

}  // namespace moe64::cuda
