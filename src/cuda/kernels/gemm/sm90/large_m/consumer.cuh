#pragma once

#include "cuda/kernels/device/thread_index.cuh"
#include "cuda/kernels/gemm/sm90/large_m/tile.cuh"

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

/// A consumer thread: where it is in the rings and what it releases; WGMMA of a stage, and the
/// promotion of tail rows, which two kinds of accumulators have.
namespace moe64::cuda {

/// What a consumer thread keeps from tile to tile.
template <class Tile>
struct large_m_consumer {
  sm90_gemm_parameters const& p;
  large_m_memory<Tile>& memory;
  int warpgroup;  ///< consumer warpgroup; shuffled, so that the compiler knows that it is uniform
  ring_place<Tile::stages> stage;
  smem_descriptor operands;  ///< of that stage: weights, behind them rows
  ring_place<Tile::chunks> scales;
  int middle = 0;  ///< m128n192: the scale of outputs 64 to 127, behind that of the first

  __device__ large_m_consumer(sm90_gemm_parameters const& p_, large_m_memory<Tile>& memory_)
      : p(p_),
        memory(memory_),
        warpgroup(__shfl_sync(~0U, thread_index::number() / 128 - 1, 0)),
        operands(cute::cast_smem_ptr_to_uint(memory_.stage[0])) {}

  /// The descriptor of the next stage is computed before the stage is awaited.
  __device__ __forceinline__ void next_stage() {
    stage.next();
    constexpr int back = (1 - Tile::stages) * Tile::stage_bytes;
    operands = operands.further(stage.slot == 0 ? back : Tile::stage_bytes);
    operands.settle();
  }

  /// By all consumer warpgroups, before the main loop: their barriers are in one place of the code
  /// whatever each of them does with the tile.
  __device__ __forceinline__ void load_terms(gemm_tile const& tile) const {
    if (!has_output_terms(p, tile)) return;
    constexpr auto sync_consumers = [] {
      cutlass::arch::NamedBarrier::arrive_and_wait(Tile::warpgroups * 128, 2U);
    };
    sync_consumers();  // until here some still use those of the last tile
    if (warpgroup == 0) load_output_terms(p, tile, 0, memory.terms);
    sync_consumers();
  }
  /// By the whole warp, which will not look at the stage again; at both CTAs of the cluster.
  __device__ __forceinline__ void release(int slot) const {
    __syncwarp();
    bool const elected = cute::elect_one_sync() != 0;  // which lane it is would take a register
#pragma unroll
    for (int cta = 0; cta < Tile::cluster; ++cta) {
      arrive_at(memory.stages.used[slot], cta, elected);
    }
  }
  /// By the whole warpgroup: its TMA store has read y, whose shared memory is free.
  __device__ __forceinline__ void await_tma_store() const {
    cute::tma_store_wait<0>();
    sync_warpgroup();
  }
  __device__ __forceinline__ void sync_warpgroup() const {
    auto const barrier = static_cast<std::uint32_t>(3 + warpgroup);  // narrow-ok: 3 to 5
    cutlass::arch::NamedBarrier::arrive_and_wait(128, barrier);
  }
  /// Loads of the scales may still be in flight. They are ordered before what is written there
  /// next, which waits for this arrival and is not written by TMA.
  __device__ __forceinline__ void release_scales() {
    __syncwarp();
    if (cute::elect_one_sync() != 0) arrive(memory.scales.used[scales.slot]);
    scales.next();
  }
};

template <int Count>
__device__ __forceinline__ void zero(float (&acc)[Count]) {
#pragma unroll
  for (float& value : acc) value = 0.0F;
}

/// Issues the WGMMAs of a stage, of M = 64 and N = `Rows` of operand B.
template <class Elements, int Rows>
__device__ __forceinline__ void issue_wgmma(smem_descriptor const& a, smem_descriptor const& b,
                                            float (&products)[Rows / 2]) {
  fence_registers(products);
  cute::warpgroup_arrive();
  wgmma_stage<Elements, Rows>(a, b, products, true);
  cute::warpgroup_commit_batch();
}
template <int Count>
__device__ __forceinline__ void await_wgmma(float (&products)[Count]) {
  cute::warpgroup_wait<0>();
  fence_registers(products);
}

/// A load that the compiler does not move ahead: there are no registers for it.
__device__ __forceinline__ float read_now(std::uint32_t shared_address) {
  float number;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(number) : "r"(shared_address));
  return number;
}

/// The scales of products whose operand B are tail rows: of each 8 of these the two that a thread
/// has.
template <class Tile>
struct tail_scales {
  float of_row[max_tail_rows / 4], of_outs;
};
/// Of rows from `row` of the tile on: k-block k of the chunk.
template <class Tile>
__device__ __forceinline__ tail_scales<Tile> read_tail_scales(large_m_consumer<Tile> const& thread,
                                                              int row, int k) {
  large_m_memory<Tile>& memory = thread.memory;
  int const slot = thread.scales.slot, own = row + thread_index::lane() % 4 * 2;
  auto const first = cute::cast_smem_ptr_to_uint(&memory.row_scale[slot][own][k]);
  constexpr std::uint32_t row_bytes = sizeof(memory.row_scale[0][0]);
  tail_scales<Tile> found;
#pragma unroll
  for (unsigned j = 0; j < max_tail_rows / 4; ++j) {
    found.of_row[j] = read_now(first + (j / 2 * 8 + j % 2) * row_bytes);
  }
  found.of_outs = read_now(cute::cast_smem_ptr_to_uint(&memory.out_scale[slot][k]));
  return found;
}
/// Adds such products.
template <class Tile>
__device__ __forceinline__ void promote_tail(float const (&products)[max_tail_rows / 2],
                                             tail_scales<Tile> const& scales,
                                             float (&acc)[max_tail_rows / 2]) {
#pragma unroll
  for (int j = 0; j < max_tail_rows / 4; ++j) {
    float const scale = scales.of_row[j] * scales.of_outs;
#pragma unroll
    for (int i = j / 2 * 4 + j % 2; i < j / 2 * 4 + 4; i += 2) {
      acc[i] = __fmaf_rn(products[i], scale, acc[i]);
    }
  }
}

}  // namespace moe64::cuda
