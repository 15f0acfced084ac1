#pragma once

#include "cuda/kernels/gemm/sm90/large_m/epilogue.cuh"

/// What m192n128 (W8A8) has of its own: a third consumer warpgroup, with which the tail rows are by
/// all outputs.
///
/// Two warpgroups leave the tensor cores idle for a quarter of the time: each multiplies, then
/// promotes, and two such chains do not fill the time between them. Three, with registers for one
/// sub-tile each, do; but tiles of fewer rows load more for each product, and where power is the
/// limit nothing is gained (docs/experiments/sm90-warpgroups.md).
namespace moe64::cuda {

/// The accumulators of a thread of a warpgroup that has the tail rows by all outputs.
template <class Tile>
class tail_accumulators {
 public:
  /// The tail begins with `row` of the tile.
  __device__ tail_accumulators(large_m_consumer<Tile>& thread, int row)
      : thread_(thread), row_(row) {
#pragma unroll
    for (auto& half : acc_) zero(half);
  }

  __device__ __forceinline__ void add(int k_blocks) {
#pragma unroll 1
    for (int k = 0; k < k_blocks; k += Tile::chunk) {
      thread_.memory.scales.await_filled(thread_.scales);
#pragma unroll 1
      for (int i = 0; i < Tile::chunk && k + i < k_blocks; ++i) add_block(i);
      thread_.release_scales();
    }
  }
  __device__ void finish(gemm_tile const& tile) {
    if (!has_output_terms(thread_.p, tile)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      apply_tail_terms(thread_.memory.terms, half * 64, acc_[half]);
    }
  }
  __device__ void store(gemm_tile const& tile) {
    bool const bf16 = thread_.p.y.type == dtype::bf16;
    if constexpr (Tile::tma_store) thread_.await_tma_store();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_tail(thread_, tile, bf16, row_, half * 64, acc_[half]);
    }
  }

 private:
  /// K-block k of the chunk.
  __device__ __forceinline__ void add_block(int k) {
    int const slot = thread_.stage.slot;
    thread_.memory.stages.await_filled(thread_.stage);
    float products[2][max_tail_rows / 2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      issue_wgmma<typename Tile::elements, max_tail_rows>(
          thread_.operands.further(half * 64 * 128),
          thread_.operands.further(Tile::weight_bytes + row_ * 128), products[half]);
    }
    auto const scales = read_tail_scales<Tile>(thread_, row_, k);
#pragma unroll
    for (auto& half : products) await_wgmma(half);
    thread_.release(slot);
    thread_.next_stage();
#pragma unroll
    for (int half = 0; half < 2; ++half) promote_tail<Tile>(products[half], scales, acc_[half]);
  }

  large_m_consumer<Tile>& thread_;
  int row_;
  float acc_[2][max_tail_rows / 2];  ///< by 64 outputs
};

}  // namespace moe64::cuda
