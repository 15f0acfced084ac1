#pragma once

#include "cuda/kernels/gemm/sm90/large_m/accumulators.cuh"

/// Who has what of a tile when three groups multiply it: a block of rows each; of two blocks the
/// third group has none; one block is shared by the first two, 64 outputs each. Up to 32 rows that
/// are left over, of tiles of fewer than three blocks, are the third group's.
namespace moe64::cuda {

/// The sums of a group that has the rest of the rows, on the right, by all outputs.
template <class Tile>
class tail_accumulators {
 public:
  /// The rest begins with `row` of the tile.
  __device__ tail_accumulators(consumer_thread<Tile>& thread, int row)
      : thread_(thread), row_(row) {
#pragma unroll
    for (auto& half : sums_) zero(half);
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
      finish_tail<Tile>(thread_.memory.terms, half * 64, sums_[half]);
    }
  }
  __device__ void store(gemm_tile const& tile) {
    bool const bf16 = thread_.p.y.type == dtype::bf16;
    if constexpr (Tile::hands) thread_.await_handed();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_tail(thread_, tile, bf16, row_, half * 64, sums_[half]);
    }
  }

 private:
  __device__ __forceinline__ void add_block(int k) {
    int const slot = thread_.stage.slot;
    thread_.memory.stages.await_filled(thread_.stage);
    float products[2][Tile::rest / 2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      begin_products<typename Tile::elements, Tile::rest>(
          thread_.operands.further(half * 64 * 128),
          thread_.operands.further(Tile::weight_bytes + row_ * 128), products[half]);
    }
    auto const factors = read_tail_scales<Tile>(thread_, row_, k);
#pragma unroll
    for (auto& half : products) end_products(half);
    thread_.release(slot);
    thread_.next_stage();
#pragma unroll
    for (int half = 0; half < 2; ++half)
      add_scaled_tail<Tile>(products[half], factors, sums_[half]);
  }

  consumer_thread<Tile>& thread_;
  int row_;
  float sums_[2][Tile::rest / 2];  ///< by 64 outputs
};

/// By a group that has nothing of a tile: what it does not use is free at once.
template <class Tile>
__device__ __forceinline__ void pass_tile(consumer_thread<Tile>& thread, int k_blocks) {
#pragma unroll 1
  for (int k = 0; k < k_blocks; ++k) {
    if (k % Tile::chunk == 0) {
      thread.memory.scales.await_filled(thread.scales);
      thread.release_scales();
    }
    thread.memory.stages.await_filled(thread.stage);
    thread.release(thread.stage.slot);
    thread.next_stage();
  }
}

template <class Tile>
__device__ __forceinline__ void multiply_three(consumer_thread<Tile>& thread, gemm_tile const& tile,
                                               int k_blocks) {
  // All lanes have the same, which the compiler must know.
  row_blocks const rows(__shfl_sync(~0U, tile.rows, 0));
  bool const last = thread.group == 2;
  if (rows.blocks == 3 || (rows.blocks == 2 && !last)) {
    multiply_sums<consumer_accumulators<Tile, 1, false, false>>(thread, tile, k_blocks);
  } else if (rows.blocks == 1 && !last) {
    multiply_sums<consumer_accumulators<Tile, 0, true, false>>(thread, tile, k_blocks);
  } else if (rows.rest && last) {
    tail_accumulators<Tile> sums(thread, rows.blocks * Tile::block);
    sums.add(k_blocks);
    sums.finish(tile);
    sums.store(tile);
  } else {
    pass_tile(thread, k_blocks);
  }
}

}  // namespace moe64::cuda
