#pragma once

#include "cuda/kernels/gemm/sm90/mixed/accumulators.cuh"
#include "cuda/kernels/gemm/sm90/tma.cuh"

#include <cute/arch/copy_sm90.hpp>

/// The epilogue: accumulators plus bias, rounded once, staged in shared memory, and from there to y
/// by TMA stores, which read it while the next tile has begun.
namespace moe64::cuda {

[[nodiscard]] __device__ inline int this_warpgroup() { return thread_index::number() / 128 - 1; }

/// Rows [first, end) of a tile, staged in `rows`.
struct staged_rows {
  std::uint8_t* rows;
  int first, end;

  [[nodiscard]] __device__ int count() const { return end - first; }
  /// One of two, member by member: chosen by reference they would lie in local memory.
  [[nodiscard]] static __device__ staged_rows either(bool one, staged_rows const& a,
                                                     staged_rows const& b) {
    return {one ? a.rows : b.rows, one ? a.first : b.first, one ? a.end : b.end};
  }
};

/// The last `count` rows of a piece, by the threads of a warpgroup.
template <class Tile>
__device__ void store_by_threads(mixed_consumer<Tile> const& thread, gemm_tile const& tile,
                                 staged_rows const& piece, int count) {
  auto const& p = thread.p;
  auto* const y = static_cast<std::uint16_t*>(p.y.data);
  int const first_out = tile.out + this_warpgroup() * 64;
#pragma unroll 1
  for (int i = (piece.count() - count) * 8 + thread_index::number() % 128; i < piece.count() * 8;
       i += 128) {
    int const row = i / 8, out = first_out + i % 8 * 8;
    if (out >= p.n_part) continue;
    std::uint16_t* const to =
        y + (tile.row + index_t{piece.first + row}) * p.y.stride[0] + tile.part * p.n_part + out;
    auto const* const from =
        reinterpret_cast<std::uint16_t const*>(piece.rows + swizzled_place(row, i % 8));
    if (p.y_by_tma && out + 8 <= p.n_part) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4 const*>(from);
      continue;
    }
#pragma unroll 1
    for (int j = 0; j < within(p.n_part - out, 8); ++j) to[j] = from[j];
  }
}

/// By one thread: rows [row, end) of a piece, as far as they are whole 8s. TMA drops outputs past
/// the end.
template <class Tile>
__device__ void store_by_tma(mixed_consumer<Tile> const& thread, gemm_tile const& tile,
                             staged_rows const& piece, int row, int end) {
  int const out = tile.out + this_warpgroup() * 64;
  if (out >= thread.p.n_part) return;
#pragma unroll
  for (int i = std::size(mixed_store_box_rows) - 1; i >= 0; --i) {
    constexpr int box[] = {mixed_store_box_rows[0], mixed_store_box_rows[1],
                           mixed_store_box_rows[2]};
#pragma unroll 1
    for (; row + box[i] <= end; row += box[i]) {
      cute::SM90_TMA_STORE_3D::copy(&thread.p.y_map[i], piece.rows + row * 128, out, tile.part,
                                    tile.row + piece.first + row);
    }
  }
  cute::tma_store_arrive();
}

/// By the whole warpgroup, once each thread has staged its values of both pieces. What TMA does not
/// store is written by threads: where y is not aligned, all; of a tile, the rows after the last
/// whole 8.
template <class Tile>
__device__ void store_pieces(mixed_consumer<Tile> const& thread, gemm_tile const& tile,
                             staged_rows const& first, staged_rows const& second) {
  cute::tma_store_fence();
  thread.sync_warpgroup();
  if (!thread.p.y_by_tma) {
    store_by_threads(thread, tile, first, first.count());
    store_by_threads(thread, tile, second, second.count());
    return;
  }
  staged_rows const last = staged_rows::either(second.count() > 0, second, first);
  store_by_threads(thread, tile, last, last.count() % 8);
  // Two warps for each piece: its first box and the others. Always the same lanes, which later wait
  // for their own stores.
  if (cute::elect_one_sync() == 0) return;
  constexpr int box = 64;
  int const warp = thread_index::warp();
  staged_rows const piece = staged_rows::either(warp < 2, first, second);
  int const row = warp % 2 * box;
  store_by_tma(thread, tile, piece, row,
               warp % 2 == 0 ? within(piece.count(), box) : piece.count());
}

template <class Tile, int MaxRows>
__device__ __forceinline__ void mixed_accumulators<Tile, MaxRows>::store(
    mixed_consumer<Tile>& thread, gemm_tile const& tile) {
  constexpr bool keeps_stage = Tile::wgmmas * MaxRows > Tile::own_y_rows;
  if constexpr (keeps_stage) {
    thread.keep_stage();
  } else {
    thread.release_stage(thread.stage.slot);
  }
  thread.stage.next();
  if (thread.p.bias[tile.part].present()) add_bias(thread);
  // TMA has read y of the tile before.
  cute::tma_store_wait<0>();
  thread.sync_warpgroup();
  std::uint8_t* const own = thread.memory.y[this_warpgroup()];
  stage_y<0, max_first>(thread, own);
  int const first = Tile::wgmmas == 2 ? rows_ : max_first;
  staged_rows second = {own, first, first};
  if constexpr (keeps_stage) {
    second.rows = thread.await_kept_stage() + this_warpgroup() * Tile::stage_share;
    second.end = tile.rows > first ? tile.rows : first;
    stage_y<max_first, max_second>(thread, second.rows);
  }
  store_pieces(thread, tile, {own, 0, within(tile.rows, first)}, second);
}

template <class Tile, int MaxRows>
__device__ void mixed_accumulators<Tile, MaxRows>::add_bias(mixed_consumer<Tile> const& thread) {
#pragma unroll
  for (int i = 0; i < Tile::wgmmas * MaxRows / 2; ++i) acc_[i] += thread.bias[i / 2 % 2];
}

/// Count rows, whose accumulators lie behind those of First rows. There is room for all, however
/// many of them are the tile's: to ask would take longer than to stage them.
template <class Tile, int MaxRows>
template <int First, int Count>
__device__ void mixed_accumulators<Tile, MaxRows>::stage_y(mixed_consumer<Tile> const& thread,
                                                           std::uint8_t* to) const {
  auto const as = [&]<class Element>(Element) {
    if constexpr (Tile::transposed) {
      stage_pairs<Element, Count>(acc_ + First / 2, to);
    } else {
      stage_matrices<Element, Count>(acc_ + First / 2, to);
    }
  };
  if (thread.p.y.type == dtype::bf16) {
    as(bf16_register_operand());
  } else {
    as(f16_register_operand());
  }
}

/// Transposed: two neighbouring outputs are one thread's.
template <class Tile, int MaxRows>
template <class Element, int Count>
__device__ void mixed_accumulators<Tile, MaxRows>::stage_pairs(float const* acc, std::uint8_t* to) {
  int const lane = thread_index::lane();
  int const chunk = thread_index::warp() * 2 + lane / 16, in_chunk = lane / 4 % 4 * 4;
#pragma unroll
  for (int r = 0; r < Count; r += 8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int const row = r + lane % 4 * 2 + i;
      *reinterpret_cast<std::uint32_t*>(to + swizzled_place(row, chunk) + in_chunk) =
          Element::of(acc[r / 2 + i], acc[r / 2 + 2 + i]);
    }
  }
}

/// By STSM, transposed.
template <class Tile, int MaxRows>
template <class Element, int Count>
__device__ void mixed_accumulators<Tile, MaxRows>::stage_matrices(float const* acc,
                                                                  std::uint8_t* to) {
  int const lane = thread_index::lane();
  // Four 8 x 8 matrices: rows 0 and 8 by outputs 0 and 8 of the warp's 16. Sixteen rows on, the
  // swizzle is the same.
  to += swizzled_place(lane / 16 * 8 + lane % 8, thread_index::warp() * 2 + lane / 8 % 2);
#pragma unroll
  for (int r = 0; r < Count; r += 16) {
    float const* const a = acc + r / 2;
    auto& place = *reinterpret_cast<cute::uint128_t*>(to + r * 128);
    if (r + 8 < Count) {
      cute::SM90_U16x8_STSM_T::copy(Element::of(a[0], a[1]), Element::of(a[2], a[3]),
                                    Element::of(a[4], a[5]), Element::of(a[6], a[7]), place);
    } else {
      cute::SM90_U16x4_STSM_T::copy(Element::of(a[0], a[1]), Element::of(a[2], a[3]), place);
    }
  }
}

}  // namespace moe64::cuda
