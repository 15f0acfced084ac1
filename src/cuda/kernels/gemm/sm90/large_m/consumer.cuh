#pragma once

#include "cuda/kernels/device/thread_index.cuh"
#include "cuda/kernels/gemm/sm90/large_m/tile.cuh"

/// What the threads that multiply large tiles do, however many groups they are.
namespace moe64::cuda {

/// What a thread of a group keeps from tile to tile.
template <class Tile>
struct consumer_thread {
  sm90_gemm_parameters const& p;
  large_m_memory<Tile>& memory;
  int group;  ///< of all lanes of a warp the same, which the compiler must know
  ring_place<Tile::stages> stage;
  smem_descriptor operands;  ///< of that stage: weights, behind them rows
  ring_place<Tile::chunks> scales;
  int middle = 0;  ///< of 192 outputs: where the scale of 64 to 127 is, behind the first

  __device__ consumer_thread(sm90_gemm_parameters const& p_, large_m_memory<Tile>& memory_)
      : p(p_),
        memory(memory_),
        group(__shfl_sync(~0U, thread_index::number() / 128 - 1, 0)),
        operands(cute::cast_smem_ptr_to_uint(memory_.stage[0])) {}

  /// Where the operands of the next one are is found before it is awaited.
  __device__ __forceinline__ void next_stage() {
    stage.next();
    constexpr int back = (1 - Tile::stages) * Tile::stage_bytes;
    operands = operands.further(stage.slot == 0 ? back : Tile::stage_bytes);
    operands.settle();
  }

  /// By all groups, before they multiply: scales and bias of the tile's outputs, where it has any.
  /// They meet in one place whatever each of them does with the tile.
  __device__ __forceinline__ void bring_terms(gemm_tile const& tile) const {
    if (!has_output_terms(p, tile)) return;
    constexpr auto meet = [] {
      cutlass::arch::NamedBarrier::arrive_and_wait(Tile::groups * 128, 2U);
    };
    meet();  // until here some still use those of the last tile
    if (group == 0) load_output_terms(p, tile, 0, memory.terms);
    meet();
  }
  /// By the whole warp: it will not look at the stage again.
  __device__ __forceinline__ void release(int slot) const {
    __syncwarp();
    bool const elected = cute::elect_one_sync() != 0;  // which lane it is would take a register
#pragma unroll
    for (int block = 0; block < Tile::cluster; ++block) {
      arrive_at(memory.stages.used[slot], block, elected);
    }
  }
  /// By the whole group: what it handed to the copy engine has been read, and its memory of y is
  /// free.
  __device__ __forceinline__ void await_handed() const {
    cute::tma_store_wait<0>();
    meet_group();
  }
  __device__ __forceinline__ void meet_group() const {
    auto const barrier = static_cast<std::uint32_t>(3 + group);  // narrow-ok: 3 to 5
    cutlass::arch::NamedBarrier::arrive_and_wait(128, barrier);
  }
  /// Scales that were read may still be on their way. They come before what is written there next,
  /// which waits for this and is no copy of the engine's.
  __device__ __forceinline__ void release_scales() {
    __syncwarp();
    if (cute::elect_one_sync() != 0) arrive(memory.scales.used[scales.slot]);
    scales.next();
  }
};

template <int Count>
__device__ __forceinline__ void zero(float (&sums)[Count]) {
#pragma unroll
  for (float& sum : sums) sum = 0.0F;
}

/// Begins the products of a stage: 64 rows on the left, `Right` on the right.
template <class Elements, int Right>
__device__ __forceinline__ void begin_products(smem_descriptor const& left,
                                               smem_descriptor const& right,
                                               float (&products)[Right / 2]) {
  fence_registers(products);
  cute::warpgroup_arrive();
  wgmma_stage<Elements, Right>(left, right, products, true);
  cute::warpgroup_commit_batch();
}
template <int Count>
__device__ __forceinline__ void end_products(float (&products)[Count]) {
  cute::warpgroup_wait<0>();
  fence_registers(products);
}

/// Not earlier: there are no registers for it.
__device__ __forceinline__ float read_now(std::uint32_t shared_address) {
  float number;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(number) : "r"(shared_address));
  return number;
}

/// What products whose right operand are rows are multiplied by: of each 8 of these the two that a
/// thread has.
template <class Tile>
struct tail_scales {
  float of_row[Tile::rest / 4], of_outs;
};
/// Of rows from `row` of the tile on: block k of the chunk.
template <class Tile>
__device__ __forceinline__ tail_scales<Tile> read_tail_scales(consumer_thread<Tile> const& thread,
                                                              int row, int k) {
  large_m_memory<Tile>& memory = thread.memory;
  int const slot = thread.scales.slot, own = row + thread_index::lane() % 4 * 2;
  auto const first = cute::cast_smem_ptr_to_uint(&memory.row_scale[slot][own][k]);
  constexpr std::uint32_t row_bytes = sizeof(memory.row_scale[0][0]);
  tail_scales<Tile> found;
#pragma unroll
  for (unsigned j = 0; j < Tile::rest / 4; ++j) {
    found.of_row[j] = read_now(first + (j / 2 * 8 + j % 2) * row_bytes);
  }
  found.of_outs = read_now(cute::cast_smem_ptr_to_uint(&memory.out_scale[slot][k]));
  return found;
}
/// Adds such products.
template <class Tile>
__device__ __forceinline__ void add_scaled_tail(float const (&products)[Tile::rest / 2],
                                                tail_scales<Tile> const& factors,
                                                float (&sums)[Tile::rest / 2]) {
#pragma unroll
  for (int j = 0; j < Tile::rest / 4; ++j) {
    float const factor = factors.of_row[j] * factors.of_outs;
#pragma unroll
    for (int i = j / 2 * 4 + j % 2; i < j / 2 * 4 + 4; i += 2) {
      sums[i] = __fmaf_rn(products[i], factor, sums[i]);
    }
  }
}

/// Sums of 64 outputs, left, from `out` of the tile on.
template <class Tile>
__device__ __forceinline__ void finish_tail(output_terms<Tile::outs> const& terms, int out,
                                            float (&sums)[Tile::rest / 2]) {
  out += thread_index::warp() * 16 + thread_index::lane() / 4;
#pragma unroll
  for (int i = 0; i < Tile::rest / 2; ++i) sums[i] = terms.of(out + i % 4 / 2 * 8, sums[i]);
}

__device__ inline std::uint16_t* y_at(sm90_gemm_parameters const& p, gemm_tile const& tile, int row,
                                      int out) {
  return static_cast<std::uint16_t*>(p.y.data) + (tile.row + index_t{row}) * p.y.stride[0] +
         tile.part * p.n_part + out;
}

/// `Rows` of the rows of a warp, by 64 outputs. `sums` begins with the first that the thread, which
/// is `lane`, has of them.
template <class Tile, int Rows>
__device__ __forceinline__ void lay_out(float const* sums, bool bf16, int lane,
                                        std::uint8_t* buffer) {
  // Four 8 x 8 matrices, side by side: rows 0 of a thread, then its rows 8.
#pragma unroll
  for (int eights = 0; eights < Rows; eights += 8) {
#pragma unroll
    for (int i = 0; i < Tile::out_cols; i += 32) {
      float const* const s = sums + i / 2 + eights / 4;
      auto& place = *reinterpret_cast<cute::uint128_t*>(
          buffer + Tile::place_out(eights + lane % 8, i / 8 + lane / 8));
      cute::SM90_U32x4_STSM_N::copy(packed(s[0], s[1], bf16), packed(s[4], s[5], bf16),
                                    packed(s[8], s[9], bf16), packed(s[12], s[13], bf16), place);
    }
  }
}

/// A block of rows from `row` of the tile on, by all outputs of it, to the copy engine, which drops
/// those that a part has not; by the whole group after await_handed(). Returns false, and has done
/// nothing, where some of the rows are not there.
template <class Tile>
__device__ __forceinline__ bool hand_over(consumer_thread<Tile> const& thread,
                                          gemm_tile const& tile, bool bf16, int row,
                                          float const (&sums)[Tile::outs / 2]) {
  sm90_gemm_parameters const& p = thread.p;
  if (!p.y_vectors || row + Tile::block > tile.rows) return false;
  int const warp = thread_index::warp(), lane = thread_index::lane();
  std::uint8_t* const first = thread.memory.out[thread.group * 4];
#pragma unroll
  for (int i = 0; i < Tile::outs / Tile::out_cols; ++i) {
    lay_out<Tile, Tile::warp_rows>(
        sums + i * Tile::out_cols / 2, bf16, lane,
        first + i * Tile::handed_bytes + warp * Tile::warp_rows * Tile::out_cols * 2);
  }
  cute::tma_store_fence();
  thread.meet_group();
  bool const elected = cute::elect_one_sync() != 0;  // always the same lane, which then waits
  if (warp == 0 && elected) {
#pragma unroll
    for (int i = 0; i < Tile::outs / Tile::out_cols; ++i) {
      if (tile.out + i * Tile::out_cols >= p.n_part) break;
      cute::SM90_TMA_STORE_3D::copy(&p.y_map, first + i * Tile::handed_bytes,
                                    tile.out + i * Tile::out_cols, tile.part, tile.row + row);
    }
    cute::tma_store_arrive();
  }
  return true;
}

/// Of sums whose right operand are rows, from `row` of the tile on, and whose left operand are 64
/// outputs from `out` of it on.
template <class Tile>
__device__ __forceinline__ void store_tail(consumer_thread<Tile> const& thread,
                                           gemm_tile const& tile, bool bf16, int row, int out,
                                           float const (&sums)[Tile::rest / 2]) {
  int const lane = thread_index::lane(), warp = thread_index::warp();
  std::uint8_t* const buffer = thread.memory.out[thread.group * 4 + warp];
  // Four 8 x 8 matrices, transposed: rows 0 by outputs 0 and 8 of the warp's 16, rows 8 by the
  // same.
  std::uint8_t* const to = buffer + Tile::place_out(lane % 8, lane / 8);
  std::uint8_t const* const from = buffer + Tile::place_out(lane / 2 % 8, lane / 16 * 2 + lane % 2);
  out += tile.out + warp * 16 + lane % 2 * 8;
  row += lane / 2;
#pragma unroll
  for (int first = 0; first < Tile::rest; first += 16) {
    float const* const s = sums + first / 2;
    cute::SM90_U16x8_STSM_T::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16),
                                  packed(s[4], s[5], bf16), packed(s[6], s[7], bf16),
                                  *reinterpret_cast<cute::uint128_t*>(to));
    __syncwarp();
    if (row + first < tile.rows && out < thread.p.n_part) {
      write_eight(thread.p, from, y_at(thread.p, tile, row + first, out), out);
    }
    __syncwarp();
  }
}

}  // namespace moe64::cuda
