#pragma once

#include "cuda/kernels/gemm/sm90/mixed/accumulators.cuh"

#include <cute/arch/copy_sm90.hpp>

/// From sums to y.
namespace moe64::cuda {

/// Where 8 outputs of a row lie in a buffer of y: as the copy engine swizzles them.
__device__ inline int place_out(int row, int eight) { return row * 128 + (eight ^ (row % 8)) * 16; }

[[nodiscard]] __device__ inline int this_group() { return thread_index::number() / 128 - 1; }

/// Rows [first, end) of a tile, laid out in `rows`.
struct laid_out {
  std::uint8_t* rows;
  int first, end;

  [[nodiscard]] __device__ int count() const { return end - first; }
  /// One of two, member by member: chosen by reference they would lie in local memory.
  [[nodiscard]] static __device__ laid_out either(bool one, laid_out const& a, laid_out const& b) {
    return {one ? a.rows : b.rows, one ? a.first : b.first, one ? a.end : b.end};
  }
};

/// The last `count` rows of a part, by the threads of a group.
template <class Tile>
__device__ void write_rows(mixed_consumer<Tile> const& thread, gemm_tile const& tile,
                           laid_out const& part, int count) {
  auto const& p = thread.p;
  auto* const y = static_cast<std::uint16_t*>(p.y.data);
  int const first_out = tile.out + this_group() * 64;
#pragma unroll 1
  for (int i = (part.count() - count) * 8 + thread_index::number() % 128; i < part.count() * 8;
       i += 128) {
    int const row = i / 8, out = first_out + i % 8 * 8;
    if (out >= p.n_part) continue;
    std::uint16_t* const to =
        y + (tile.row + index_t{part.first + row}) * p.y.stride[0] + tile.part * p.n_part + out;
    auto const* const from =
        reinterpret_cast<std::uint16_t const*>(part.rows + place_out(row, i % 8));
    if (p.y_vectors && out + 8 <= p.n_part) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4 const*>(from);
      continue;
    }
#pragma unroll 1
    for (int j = 0; j < within(p.n_part - out, 8); ++j) to[j] = from[j];
  }
}

/// By one thread: rows [row, end) of a part, whole eights, by the copy engine, which drops outputs
/// that there are not.
template <class Tile>
__device__ void hand_over(mixed_consumer<Tile> const& thread, gemm_tile const& tile,
                          laid_out const& part, int row, int end) {
  int const out = tile.out + this_group() * 64;
  if (out >= thread.p.n_part) return;
#pragma unroll
  for (int i = std::size(mixed_store_box_rows) - 1; i >= 0; --i) {
    constexpr int box[] = {mixed_store_box_rows[0], mixed_store_box_rows[1],
                           mixed_store_box_rows[2]};
#pragma unroll 1
    for (; row + box[i] <= end; row += box[i]) {
      cute::SM90_TMA_STORE_3D::copy(&thread.p.y_map[i], part.rows + row * 128, out, tile.part,
                                    tile.row + part.first + row);
    }
  }
  cute::tma_store_arrive();
}

/// By the whole group, once each thread has laid out its numbers of both parts; the copy engine
/// reads them while the next tile has begun.
template <class Tile>
__device__ void write_parts(mixed_consumer<Tile> const& thread, gemm_tile const& tile,
                            laid_out const& first, laid_out const& second) {
  cute::tma_store_fence();
  thread.await_group();
  if (!thread.p.y_vectors) {
    write_rows(thread, tile, first, first.count());
    write_rows(thread, tile, second, second.count());
    return;
  }
  laid_out const last = laid_out::either(second.count() > 0, second, first);
  write_rows(thread, tile, last, last.count() % 8);
  // Two warps for each part: its first box and the others. Always the same lanes, which later wait
  // for what they handed over.
  if (cute::elect_one_sync() == 0) return;
  constexpr int box = 64;
  int const warp = thread_index::warp();
  laid_out const part = laid_out::either(warp < 2, first, second);
  int const row = warp % 2 * box;
  hand_over(thread, tile, part, row, warp % 2 == 0 ? within(part.count(), box) : part.count());
}

template <class Tile, int Most>
__device__ __forceinline__ void mixed_accumulators<Tile, Most>::store(mixed_consumer<Tile>& thread,
                                                                      gemm_tile const& tile) {
  constexpr bool keeps = Tile::halves * Most > Tile::own_rows;
  if constexpr (keeps) {
    thread.keep();
  } else {
    thread.release(thread.stage.slot);
  }
  thread.stage.next();
  if (thread.p.bias[tile.part].present()) add_bias(thread);
  // What was handed over last has been read.
  cute::tma_store_wait<0>();
  thread.await_group();
  std::uint8_t* const own = thread.memory.out[this_group()];
  lay_out<0, most_first>(thread, own);
  int const first = Tile::halves == 2 ? width_ : most_first;
  laid_out rest = {own, first, first};
  if constexpr (keeps) {
    rest.rows = thread.await_kept() + this_group() * Tile::stage_share;
    rest.end = tile.rows > first ? tile.rows : first;
    lay_out<most_first, most_second>(thread, rest.rows);
  }
  write_parts(thread, tile, {own, 0, within(tile.rows, first)}, rest);
}

template <class Tile, int Most>
__device__ void mixed_accumulators<Tile, Most>::add_bias(mixed_consumer<Tile> const& thread) {
#pragma unroll
  for (int i = 0; i < Tile::halves * Most / 2; ++i) sums_[i] += thread.addend[i / 2 % 2];
}

/// Count rows, whose sums lie behind those of First rows, as rows of y. There is room for all,
/// however many of them are the tile's: to ask would take longer than to lay them out.
template <class Tile, int Most>
template <int First, int Count>
__device__ void mixed_accumulators<Tile, Most>::lay_out(mixed_consumer<Tile> const& thread,
                                                        std::uint8_t* to) const {
  auto const as = [&]<class Elements>(Elements) {
    if constexpr (Tile::transposed) {
      lay_out_pairs<Elements, Count>(sums_ + First / 2, to);
    } else {
      lay_out_matrices<Elements, Count>(sums_ + First / 2, to);
    }
  };
  if (thread.p.y.type == dtype::bf16) {
    as(bf16_register_operand());
  } else {
    as(f16_register_operand());
  }
}

/// Two neighbouring outputs are one thread's.
template <class Tile, int Most>
template <class Elements, int Count>
__device__ void mixed_accumulators<Tile, Most>::lay_out_pairs(float const* sums, std::uint8_t* to) {
  int const lane = thread_index::lane();
  int const eight = thread_index::warp() * 2 + lane / 16, within_eight = lane / 4 % 4 * 4;
#pragma unroll
  for (int r = 0; r < Count; r += 8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int const row = r + lane % 4 * 2 + i;
      *reinterpret_cast<std::uint32_t*>(to + place_out(row, eight) + within_eight) =
          Elements::of(sums[r / 2 + i], sums[r / 2 + 2 + i]);
    }
  }
}

template <class Tile, int Most>
template <class Elements, int Count>
__device__ void mixed_accumulators<Tile, Most>::lay_out_matrices(float const* sums,
                                                                 std::uint8_t* to) {
  int const lane = thread_index::lane();
  // Four 8 x 8 matrices: rows 0 and 8 by outputs 0 and 8 of the warp's 16. Sixteen rows on, places
  // are exchanged alike.
  to += place_out(lane / 16 * 8 + lane % 8, thread_index::warp() * 2 + lane / 8 % 2);
#pragma unroll
  for (int r = 0; r < Count; r += 16) {
    float const* const s = sums + r / 2;
    auto& place = *reinterpret_cast<cute::uint128_t*>(to + r * 128);
    if (r + 8 < Count) {
      cute::SM90_U16x8_STSM_T::copy(Elements::of(s[0], s[1]), Elements::of(s[2], s[3]),
                                    Elements::of(s[4], s[5]), Elements::of(s[6], s[7]), place);
    } else {
      cute::SM90_U16x4_STSM_T::copy(Elements::of(s[0], s[1]), Elements::of(s[2], s[3]), place);
    }
  }
}

}  // namespace moe64::cuda
