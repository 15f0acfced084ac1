#pragma once

#include "cuda/kernels/gemm/sm90/large_m/consumer.cuh"

/// The main loop of large-M tiles.
namespace moe64::cuda {

/// The accumulators of one thread of a consumer warpgroup: of `Own` sub-tiles by all outputs of the
/// tile; of a sub-tile that two warpgroups share (`Shared`) by 64 outputs of each; and of the tail
/// rows (`Tail`), which are operand B, by 64 outputs of each.
///
/// Of 64 x n accumulators WGMMA gives a thread, along operand A, 16 * warp + lane / 4 and that + 8,
/// and along operand B, of each 8, the two from lane % 4 * 2 on.
template <class Tile, int Own, bool Shared, bool Tail>
class large_m_accumulators {
 public:
  __device__ explicit large_m_accumulators(large_m_consumer<Tile>& thread)
      : thread_(thread), p_(thread.p), memory_(thread.memory), warpgroup_(thread.warpgroup) {
#pragma unroll
    for (auto& acc : own_) zero(acc);
    zero(shared_);
    zero(tail_);
  }

  /// Adds the products over all of k.
  __device__ __forceinline__ void add(int k_stages) {
    if constexpr (elements::scaled) {
      add_promoted(k_stages);
    } else {
      int last = -1;  // stage whose WGMMAs may not have ended
#pragma unroll 1
      for (int k = 0; k < k_stages; ++k) {
        memory_.stages.await_filled(thread_.stage);
        add_in_place();
        // All but the WGMMAs that were just issued have ended.
        cute::warpgroup_wait<1>();
        if (last >= 0) thread_.release(last);
        last = thread_.stage.slot;
        thread_.next_stage();
      }
      cute::warpgroup_wait<0>();
      fence_all();
      thread_.release(last);
    }
  }

  // The epilogue (epilogue.cuh): row scales and bias, then one rounding and y.
  __device__ void finish(gemm_tile const& tile);
  __device__ void store(gemm_tile const& tile);

 private:
  using elements = typename Tile::elements;
  /// Where the shared sub-tile and the tail begin.
  static constexpr int shared_row = 2 * Own * sub_tile_rows;
  static constexpr int tail_row = shared_row + (Shared ? sub_tile_rows : 0);
  /// Scales of outputs that a thread needs: 192 outputs lie in two quantisation blocks, of which
  /// one ends in the middle of the tile, at a multiple of 64.
  static constexpr int pieces = Tile::outs == 192 ? 3 : 1;
  /// The loop over k-blocks: where registers allow it, and for the most common tiles. That of
  /// others had better be short.
  static constexpr bool unrolled =
      !Shared && !Tail && (Own == 2 || (Own == 1 && (Tile::warpgroups == 3 || pieces == 3)));

  struct out_scales {
    float of[pieces];
  };
  /// Of the two rows that a thread has of operand A.
  struct row_scale_pair {
    float upper, lower;
  };
  /// Where the scales of a chunk are in shared memory: of the first of the thread's rows, of the
  /// outputs.
  struct scale_places {
    std::uint32_t rows, outs;
  };
  /// Of one k-block: of the outputs, and of the rows of own sub-tiles.
  struct block_scales_of {
    out_scales outs;
    row_scale_pair rows[Own == 0 ? 1 : Own];
  };
  static constexpr std::uint32_t row_bytes = Tile::chunk * sizeof(float);

  __device__ __forceinline__ void fence_all() {
#pragma unroll
    for (auto& acc : own_) fence_registers(acc);
    fence_registers(shared_);
    fence_registers(tail_);
  }

  [[nodiscard]] __device__ smem_descriptor weights(int out) const {
    return thread_.operands.further(out * 128);
  }
  [[nodiscard]] __device__ smem_descriptor rows(int row) const {
    return thread_.operands.further(Tile::weight_bytes + row * 128);
  }

  __device__ __forceinline__ scale_places await_scales() const {
    memory_.scales.await_filled(thread_.scales);
    auto const thread = static_cast<std::uint32_t>(thread_index::number());  // narrow-ok: positive
    std::uint32_t const row = (thread >> 1 & 0x30U) | (thread >> 2 & 7U);    // warp * 16 + lane / 4
    int const slot = thread_.scales.slot;
    return {cute::cast_smem_ptr_to_uint(memory_.row_scale[slot][warpgroup_ * Own * sub_tile_rows]) +
                row * row_bytes,
            cute::cast_smem_ptr_to_uint(memory_.out_scale[slot])};
  }
  /// K-block k of the chunk.
  __device__ __forceinline__ block_scales_of read_scales(scale_places const& at, int k) const {
    block_scales_of found = {};
    if constexpr (Own > 0) {
      auto const here = static_cast<std::uint32_t>(k) * 4;  // narrow-ok: below chunk
      found.outs = read_outs(at.outs + here);
#pragma unroll
      for (int i = 0; i < Own; ++i) found.rows[i] = read_pair(at.rows + here, i * sub_tile_rows);
    }
    return found;
  }
  __device__ __forceinline__ out_scales read_outs(std::uint32_t place) const {
    if constexpr (pieces == 1) {
      return {{read_now(place)}};
    } else {
      auto const middle = static_cast<std::uint32_t>(thread_.middle);  // narrow-ok: a chunk or 0
      return {{read_now(place), read_now(place + middle * 4), read_now(place + Tile::chunk * 4)}};
    }
  }
  /// `row`: behind the one whose scale is at `place`.
  static __device__ __forceinline__ row_scale_pair read_pair(std::uint32_t place, int row) {
    auto const upper = place + static_cast<std::uint32_t>(row) * row_bytes;  // narrow-ok: mod 2^32
    return {read_now(upper), read_now(upper + 8 * row_bytes)};
  }

  /// W8A8. While one warpgroup promotes, the WGMMA of another runs, and little is done between a
  /// stage's coming and its WGMMA: scales are read while the products before are promoted, and
  /// those of the next chunk awaited while the last WGMMA of this one runs.
  __device__ __forceinline__ void add_promoted(int left) {
    scale_places at = await_scales();
    block_scales_of now = read_scales(at, 0);
    if constexpr (unrolled) {
#pragma unroll 1
      while (left >= Tile::chunk) {
        bool const more = left > Tile::chunk;
#pragma unroll
        for (int k = 0; k + 1 < Tile::chunk; ++k) {
          add_stage(at, k, now, [] {});
          now = read_scales(at, k + 1);
        }
        add_stage(at, Tile::chunk - 1, now, [&] {
          thread_.release_scales();
          if (more) at = await_scales();
        });
        if (more) now = read_scales(at, 0);
        left -= Tile::chunk;
      }
      if (left == 0) return;
      if ((left & 2) != 0) {
        add_stage(at, 0, now, [] {});
        now = read_scales(at, 1);
        add_stage(at, 1, now, [] {});
        if ((left & 1) != 0) now = read_scales(at, 2);
      }
      if ((left & 1) != 0) add_stage(at, left - 1, now, [] {});
      thread_.release_scales();
    } else {
#pragma unroll 1
      for (int k = 0;;) {
        add_stage(at, k, now, [] {});
        if (--left == 0) break;
        if (++k == Tile::chunk) {
          thread_.release_scales();
          at = await_scales();
          k = 0;
        }
        now = read_scales(at, k);
      }
      thread_.release_scales();
    }
  }
  /// One stage, k-block k of its chunk. `meanwhile()` while its last WGMMA runs, after the last
  /// look at its scales.
  template <class Meanwhile>
  __device__ __forceinline__ void add_stage(scale_places const& at, int k,
                                            block_scales_of const& of_own, Meanwhile meanwhile) {
    int const slot = thread_.stage.slot, row = warpgroup_ * Own * sub_tile_rows;
    smem_descriptor own = rows(row);
    own.settle();
    memory_.stages.await_filled(thread_.stage);
#pragma unroll
    for (int i = 0; i < Own; ++i) {
      bool const last = i + 1 == Own && !Shared && !Tail;
      float products[Tile::outs / 2];
      issue_wgmma<elements, Tile::outs>(own.further(i * sub_tile_rows * 128), weights(0), products);
      if (last) meanwhile();
      await_wgmma(products);
      if (last) thread_.release(slot);
      promote(products, of_own.rows[i], of_own.outs, own_[i]);
    }
    if constexpr (Shared) {
      auto const here = static_cast<std::uint32_t>(k) * 4;  // narrow-ok: below chunk
      float products[32];
      issue_wgmma<elements, 64>(rows(shared_row), weights(warpgroup_ * 64), products);
      row_scale_pair const of_shared = read_pair(at.rows + here, shared_row - row);
      out_scales const of_shared_outs = {{read_now(at.outs + here)}};
      if (!Tail) meanwhile();
      await_wgmma(products);
      if (!Tail) thread_.release(slot);
      promote(products, of_shared, of_shared_outs, shared_);
    }
    if constexpr (Tail) {
      // There are no registers for products of both.
      if constexpr (Own == 2) fence_registers(own_[1]);
      float products[max_tail_rows / 2];
      issue_wgmma<elements, max_tail_rows>(weights(warpgroup_ * 64), rows(tail_row), products);
      auto const of_tail = read_tail_scales<Tile>(thread_, tail_row, k);
      meanwhile();
      await_wgmma(products);
      thread_.release(slot);
      promote_tail<Tile>(products, of_tail, tail_);
    }
    thread_.next_stage();
  }
  template <int Count>
  static __device__ __forceinline__ void promote(float const (&products)[Count],
                                                 row_scale_pair const& of_rows,
                                                 out_scales const& of_outs, float (&acc)[Count]) {
    float upper[pieces], lower[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
      upper[i] = of_rows.upper * of_outs.of[i];
      lower[i] = of_rows.lower * of_outs.of[i];
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      int const piece = pieces == 1 ? 0 : i / 32;
      acc[i] = __fmaf_rn(products[i], i % 4 < 2 ? upper[piece] : lower[piece], acc[i]);
    }
  }

  /// bf16 and f16.
  __device__ __forceinline__ void add_in_place() {
    fence_all();
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < Own; ++i) {
      wgmma_stage<elements, Tile::outs>(rows((warpgroup_ * Own + i) * sub_tile_rows), weights(0),
                                        own_[i], false);
    }
    if constexpr (Shared) {
      wgmma_stage<elements, 64>(rows(shared_row), weights(warpgroup_ * 64), shared_, false);
    }
    if constexpr (Tail) {
      wgmma_stage<elements, max_tail_rows>(weights(warpgroup_ * 64), rows(tail_row), tail_, false);
    }
    cute::warpgroup_commit_batch();
    fence_all();
  }

  template <int Outs>
  __device__ __forceinline__ void apply_terms(int first, float (&acc)[Outs / 2]) const;
  template <int Outs>
  __device__ void store_by_warps(gemm_tile const& tile, bool bf16, int row, int out,
                                 float (&acc)[Outs / 2]);

  large_m_consumer<Tile>& thread_;
  sm90_gemm_parameters const& p_;
  large_m_memory<Tile>& memory_;
  int warpgroup_;
  float own_[Own == 0 ? 1 : Own][Tile::outs / 2];
  float shared_[32];
  float tail_[max_tail_rows / 2];
};

/// A tile, or what the warpgroup has of it, by these accumulators.
template <class Tile, int Own, bool Shared, bool Tail>
__device__ __forceinline__ void compute_rows(large_m_consumer<Tile>& thread, gemm_tile const& tile,
                                             int k_stages) {
  large_m_accumulators<Tile, Own, Shared, Tail> acc(thread);
  acc.add(k_stages);
  asm volatile("" ::: "memory");  // the tile is read again rather than kept
  acc.finish(tile);
  acc.store(tile);
}

/// W8A8, by a warpgroup that has nothing of a tile: it frees stages and scales at once.
template <class Tile>
__device__ __forceinline__ void skip_tile(large_m_consumer<Tile>& thread, int k_blocks) {
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

}  // namespace moe64::cuda
