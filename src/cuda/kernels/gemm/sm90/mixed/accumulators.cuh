#pragma once

#include "cuda/kernels/gemm/low_rank.cuh"
#include "cuda/kernels/gemm/sm90/mixed/dequantize.cuh"

/// The main loop of a consumer: dequantise a panel, multiply it, release its stage.
namespace moe64::cuda {

/// Rows of each of a tile's MMAs along the rows: as few 8s as hold them.
template <class Tile>
[[nodiscard]] __device__ int mma_rows(gemm_tile const& tile) {
  constexpr int step = 8 * Tile::wgmmas;
  int const rows = __shfl_sync(~0U, tile.rows, 0);  // the compiler must know that it is uniform
  return (rows + step - 1) / step * 8;
}

/// body<Rows>() for the multiple of 8 that `rows` is, up to MaxRows. The comparisons lie together,
/// in front of all bodies: what the compiler makes of a switch lies among them, and costs
/// instruction-cache misses.
template <bool LargestFirst, int MaxRows, class Body, int... I>
__device__ __forceinline__ void dispatch_rows(int rows, Body const& body,
                                              std::integer_sequence<int, I...>) {
  if constexpr (LargestFirst) {
    (void)((rows > MaxRows - 8 * (I + 1) ? (body.template operator()<MaxRows - 8 * I>(), true)
                                         : false) ||
           ...);
  } else {
    (void)((rows <= 8 * (I + 1) ? (body.template operator()<8 * (I + 1)>(), true) : false) || ...);
  }
}
template <bool LargestFirst, int MaxRows, class Body>
__device__ __forceinline__ void dispatch_rows(int rows, Body const& body) {
  asm volatile("" : "+r"(rows));  // nothing is known of it: comparisons stay what they are
  dispatch_rows<LargestFirst, MaxRows>(rows, body, std::make_integer_sequence<int, MaxRows / 8>());
}

/// The accumulators of one thread of a consumer warpgroup: of outputs `out` and out + out_step, of
/// each 8 rows the two from lane % 4 * 2 on. MMAs have up to MaxRows rows; where they have fewer,
/// the accumulators of each lie as if they had not. So of WGMMA tiles all but the loop over k is
/// the same code for any number of rows: code that runs once for each tile would cost
/// instruction-cache misses. mma.sync tiles have too few registers for that, and code for each
/// number of rows.
template <class Tile, int MaxRows>
class mixed_accumulators {
 public:
  __device__ __forceinline__ explicit mixed_accumulators(int rows) : rows_(rows) {
#pragma unroll
    for (float& acc : acc_) acc = 0.0F;
  }

  /// += all panels of a tile, an even number. The last stage is not released.
  __device__ __forceinline__ void multiply(mixed_consumer<Tile>& thread, int panels) {
    if constexpr (Tile::wgmma) {
      a_fragment first[steps];
      thread.memory.stages.await_filled(thread.stage);
      mixed_dequantizer<Tile> const dequantize(thread);
      dequantize(0, first);
      dispatch_rows<true, MaxRows>(rows_,
                                   [&]<int Rows>() { wgmma_loop<Rows>(thread, panels, first); });
    } else {
      mma_sync_loop(thread, panels);
    }
    thread.release_scales();
  }

  /// = scaling * u V^T, where u comes in stages of its own.
  __device__ __forceinline__ void begin_with_low_rank(mixed_consumer<Tile>& thread,
                                                      gemm_tile const& tile) {
    low_rank_operands const& low = thread.p.low_rank;
    int const rank = static_cast<int>(low.rank);  // narrow-ok: host looked
    thread.release_kept_stage(thread.stage.slot);
#pragma unroll 1
    for (int k = 0; k < rank; k += low_rank_step) {
      low_rank_fragment v(thread, tile, k);
      int const in_stage = k % Tile::stage_k;
      if (in_stage == 0) thread.memory.stages.await_filled(thread.stage);
      std::uint8_t const* const u = thread.x(in_stage / Tile::panel_k);
#pragma unroll 1
      for (int term = 0; term < low_rank_terms(low); ++term) {
        mma_sync_step(u, in_stage % Tile::panel_k / low_rank_step, v.take());
      }
      if (in_stage + low_rank_step < Tile::stage_k && k + low_rank_step < rank) continue;
      thread.release_stage(thread.stage.slot);
      thread.stage.next();
    }
#pragma unroll
    for (float& acc : acc_) acc *= low.scaling;
  }

  /// The epilogue: plus bias, rounded once, to y.
  __device__ void store(mixed_consumer<Tile>& thread, gemm_tile const& tile);

 private:
  static constexpr int steps = Tile::steps;
  /// y is staged in two pieces. Of two MMAs along the rows each is one; of one, what has room in
  /// the warpgroup's own memory and what has not.
  static constexpr int max_first =
      Tile::wgmmas == 2 || MaxRows < Tile::own_y_rows ? MaxRows : Tile::own_y_rows;
  static constexpr int max_second = Tile::wgmmas * MaxRows - max_first;
  static_assert(max_first <= Tile::own_y_rows && max_second * 128 <= Tile::stage_share);

  /// What a thread holds of V as operand A, 16 along k.
  struct low_rank_fragment {
    float remainder[4][2];

    __device__ low_rank_fragment(mixed_consumer<Tile>& thread, gemm_tile const& tile, int k) {
      if constexpr (Tile::low_rank_ahead) thread.memory.low_ranks.await_filled(thread.low_rank());
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        int const out = thread.out + i / 2 % 2 * Tile::out_step;
        int const deep = thread.lane % 4 * 2 + i / 4 * 8 + i % 2;
        if constexpr (Tile::low_rank_ahead) {
          remainder[i / 2][i % 2] = thread.memory.low_rank[0][deep][out];
        } else {
          remainder[i / 2][i % 2] =
              value(thread.p, tile, index_t{tile.out} + out, index_t{k} + deep);
        }
      }
      if constexpr (Tile::low_rank_ahead) thread.release_low_rank();
    }
    /// Straight from global memory; zero past the ends.
    [[nodiscard]] static __device__ float value(sm90_mixed_parameters const& p,
                                                gemm_tile const& tile, index_t n, index_t k) {
      if (n >= p.n_part || k >= p.low_rank.rank) return 0.0F;
      index_t const expert = tile.expert * p.low_rank.expert[tile.part];
      return low_rank_value<typename Tile::element>(p.low_rank, tile.part, expert, n, k);
    }
    /// The next of low_rank_terms().
    __device__ a_fragment take() {
      a_fragment term;
#pragma unroll
      for (int i = 0; i < 4; ++i) term.pair[i] = take_term<typename Tile::element>(remainder[i]);
      return term;
    }
  };

  /// The first panel has been dequantised into `even`. While the tensor cores read one of two sets
  /// of registers, the next panel is dequantised into the other.
  template <int Rows>
  __device__ __forceinline__ void wgmma_loop(mixed_consumer<Tile>& thread, int panels,
                                             a_fragment (&even)[steps]) {
    a_fragment odd[steps];
#pragma unroll 1
    for (int panel = 1;; panel += 2) {
      wgmma_and_dequantize<Rows, 0>(thread, panel, even, odd);
      if (panel + 1 == panels) break;
      wgmma_and_dequantize<Rows, 1>(thread, panel + 1, odd, even);
    }
    wgmma_panel<Rows>(thread.x(1), odd);
    cute::warpgroup_wait<0>();
    fence_registers(acc_);
  }

  /// Multiplies panel next - 1, where the thread is, and dequantises panel `next` meanwhile.
  template <int Rows, int Odd>
  __device__ __forceinline__ void wgmma_and_dequantize(mixed_consumer<Tile>& thread, int next,
                                                       a_fragment (&now)[steps],
                                                       a_fragment (&then)[steps]) {
    int const slot = thread.stage.slot;
    wgmma_panel<Rows>(thread.x(Odd), now);
    constexpr bool last_of_stage = Tile::panels == 1 || Odd == 1;
    if constexpr (last_of_stage) {
      thread.stage.next();
      thread.memory.stages.await_filled(thread.stage);
    }
    mixed_dequantizer<Tile> const dequantize(thread);
    dequantize(next, then);
    if (Odd == 0 && next == 1) thread.release_kept_stage(slot);
    cute::warpgroup_wait<0>();
    if constexpr (last_of_stage) thread.release_stage(slot);
  }

  template <int Rows>
  __device__ __forceinline__ void wgmma_panel(std::uint8_t const* x, a_fragment (&now)[steps]) {
    fence(now);
    fence_registers(acc_);
    cute::warpgroup_arrive();
#pragma unroll
    for (unsigned step = 0; step < steps; ++step) {
#pragma unroll
      for (int half = 0; half < Tile::wgmmas; ++half) {
        smem_descriptor const b(cute::cast_smem_ptr_to_uint(x + half * Rows * 128));
        wgmma_register_step<typename Tile::element, Rows>(now[step], b.along_k(step * 32),
                                                          acc_ + half * (MaxRows / 2),
                                                          std::make_index_sequence<Rows / 2>());
      }
    }
    cute::warpgroup_commit_batch();
  }
  static __device__ __forceinline__ void fence(a_fragment (&a)[steps]) {
#pragma unroll
    for (auto& fragment : a) fence_registers(fragment);
  }

  __device__ __forceinline__ void mma_sync_loop(mixed_consumer<Tile>& thread, int panels) {
#pragma unroll 1
    for (int panel = 0;;) {
      thread.memory.stages.await_filled(thread.stage);
      mixed_dequantizer<Tile> const dequantize(thread);
#pragma unroll
      for (int i = 0; i < Tile::panels; ++i) {
        a_fragment a[steps];
        dequantize(panel + i, a);
        mma_sync_panel(thread.x(i), a);
      }
      thread.release_kept_stage(thread.stage.slot);
      panel += Tile::panels;
      if (panel == panels) break;
      thread.release_stage(thread.stage.slot);
      thread.stage.next();
    }
  }

  /// Two steps at a time; of the last 8 rows of an odd count the operands B of both come together.
  __device__ __forceinline__ void mma_sync_panel(std::uint8_t const* x,
                                                 a_fragment const (&now)[steps]) {
    int const lane = lane_number(), matrix = lane / 8, row = lane % 8;
#pragma unroll
    for (int step = 0; step < steps; step += 2) {
#pragma unroll
      for (int first = 0; first < MaxRows; first += 16) {
        bool const both = first + 8 < MaxRows;
        std::uint32_t b[2][4];
#pragma unroll
        for (int i = 0; i < (both ? 2 : 1); ++i) {
          int const chunk = both ? (step + i) * 2 + matrix % 2 : step * 2 + matrix;
          int const at = first + (both ? matrix / 2 * 8 : 0) + row;
          load_matrices(b[i], shared_address_of(x + at * 128 + (chunk ^ row) * 16));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          std::uint32_t const* const of_step = both ? b[i] : b[0] + i * 2;
          mma_sync_8_rows(now[step + i], first, of_step);
          if (both) mma_sync_8_rows(now[step + i], first + 8, of_step + 2);
        }
      }
    }
  }
  /// One step of a panel, by mma.sync also in WGMMA tiles: with WGMMA outside of its loop the
  /// compiler would not let those in it run ahead.
  __device__ __forceinline__ void mma_sync_step(std::uint8_t const* x, int step,
                                                a_fragment const& now) {
    int const matrix = lane_number() / 8, row = lane_number() % 8;
#pragma unroll
    for (int half = 0; half < Tile::wgmmas; ++half) {
#pragma unroll
      for (int first = 0; first < MaxRows; first += 16) {
        if (first >= rows_) break;
        bool const both = first + 8 < rows_;
        int const at = half * rows_ + first + (both ? matrix / 2 * 8 : 0) + row;
        std::uint32_t b[4];
        load_matrices(b, shared_address_of(x + at * 128 + ((step * 2 + matrix % 2) ^ row) * 16));
        mma_sync_8_rows(now, half * MaxRows + first, b);
        if (first + 8 < MaxRows && both) {
          mma_sync_8_rows(now, half * MaxRows + first + 8, b + 2);
        }
      }
    }
  }
  __device__ __forceinline__ void mma_sync_8_rows(a_fragment const& a, int first,
                                                  std::uint32_t const* b) {
    float acc[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] = acc_[first / 2 + i];
    Tile::element::multiply(acc, a.pair, b[0], b[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc_[first / 2 + i] = acc[i];
  }

  __device__ void add_bias(mixed_consumer<Tile> const& thread);
  template <int First, int Count>
  __device__ void stage_y(mixed_consumer<Tile> const& thread, std::uint8_t* to) const;
  template <class Element, int Count>
  static __device__ void stage_pairs(float const* acc, std::uint8_t* to);
  template <class Element, int Count>
  static __device__ void stage_matrices(float const* acc, std::uint8_t* to);

  int rows_;  ///< of each MMA
  float acc_[Tile::wgmmas * MaxRows / 2];
};

}  // namespace moe64::cuda
