#pragma once

#include "cuda/kernels/gemm/low_rank.cuh"
#include "cuda/kernels/gemm/sm90/mixed/consumer.cuh"

namespace moe64::cuda {

/// Rows of each of a tile's products.
template <class Tile>
[[nodiscard]] __device__ int width_of(gemm_tile const& tile) {
  constexpr int each = 8 * Tile::halves;
  int const rows = __shfl_sync(~0U, tile.rows, 0);  // which the compiler must know to be the same
  return (rows + each - 1) / each * 8;
}

/// body<Width>() for the width that it is, up to Most. The questions lie together, in front of all
/// bodies: what the compiler makes of a switch lies among them, and is waited for.
template <bool LargestFirst, int Most, class Body, int... I>
__device__ __forceinline__ void for_width(int width, Body const& body,
                                          std::integer_sequence<int, I...>) {
  if constexpr (LargestFirst) {
    (void)((width > Most - 8 * (I + 1) ? (body.template operator()<Most - 8 * I>(), true)
                                       : false) ||
           ...);
  } else {
    (void)((width <= 8 * (I + 1) ? (body.template operator()<8 * (I + 1)>(), true) : false) || ...);
  }
}
template <bool LargestFirst, int Most, class Body>
__device__ __forceinline__ void for_width(int width, Body const& body) {
  asm volatile("" : "+r"(width));  // nothing is known of it: comparisons stay what they are
  for_width<LargestFirst, Most>(width, body, std::make_integer_sequence<int, Most / 8>());
}

/// The sums of one thread of a group of four warps: of outputs `out` and that + 8, of each 8 rows
/// the two from lane % 4 * 2 on. Products may be up to Most rows wide; where they are narrower, the
/// sums of each lie as if they were not. So with products of groups all but the loop over k is the
/// same code for every width: what runs once for each tile would otherwise wait for its
/// instructions. Those of warps have too few registers for that, and a width each.
template <class Tile, int Most>
class mixed_accumulators {
 public:
  __device__ __forceinline__ explicit mixed_accumulators(int width) : width_(width) {
#pragma unroll
    for (float& sum : sums_) sum = 0.0F;
  }

  /// The products of all panels of a tile, an even number. The last stage is not released.
  __device__ __forceinline__ void add_all(mixed_consumer<Tile>& thread, int panels) {
    if constexpr (Tile::products == mixed_mma::of_groups) {
      left_fragment first[steps];
      thread.memory.stages.await_filled(thread.stage);
      decode(thread, 0, first);
      for_width<true, Most>(width_,
                            [&]<int Width>() { add_by_groups<Width>(thread, panels, first); });
    } else {
      add_by_warps(thread, panels);
    }
    thread.next_scales();
  }

  /// Sums become scaling * u V^T, where u comes in stages of its own.
  __device__ __forceinline__ void add_low_rank(mixed_consumer<Tile>& thread,
                                               gemm_tile const& tile) {
    low_rank_operands const& low = thread.p.low_rank;
    int const rank = static_cast<int>(low.rank);  // narrow-ok: host looked
    thread.release_kept(thread.stage.slot);
#pragma unroll 1
    for (int k = 0; k < rank; k += low_rank_step) {
      low_rank_left left(thread, tile, k);
      int const in_stage = k % Tile::stage_k;
      if (in_stage == 0) thread.memory.stages.await_filled(thread.stage);
      std::uint8_t const* const u = thread.x(in_stage / Tile::panel_k);
#pragma unroll 1
      for (int term = 0; term < low_rank_terms(low); ++term) {
        add_step(u, in_stage % Tile::panel_k / low_rank_step, left.take());
      }
      if (in_stage + low_rank_step < Tile::stage_k && k + low_rank_step < rank) continue;
      thread.release(thread.stage.slot);
      thread.stage.next();
    }
#pragma unroll
    for (float& sum : sums_) sum *= low.scaling;
  }

  /// Plus bias, rounded once.
  __device__ void store(mixed_consumer<Tile>& thread, gemm_tile const& tile);

 private:
  static constexpr int steps = Tile::steps;
  /// y is laid out in two parts. Of two products each is one; of one, what there is own memory for
  /// and what there is not.
  static constexpr int most_first =
      Tile::halves == 2 || Most < Tile::own_rows ? Most : Tile::own_rows;
  static constexpr int most_second = Tile::halves * Most - most_first;
  static_assert(most_first <= Tile::own_rows && most_second * 128 <= Tile::stage_share);

  /// What a thread holds of V as the left operand, 16 along k.
  struct low_rank_left {
    float rest[4][2];

    __device__ low_rank_left(mixed_consumer<Tile>& thread, gemm_tile const& tile, int k) {
      if constexpr (Tile::low_rank_ahead) thread.memory.low_ranks.await_filled(thread.low_rank());
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        int const out = thread.out + i / 2 % 2 * Tile::out_step;
        int const deep = thread.lane % 4 * 2 + i / 4 * 8 + i % 2;
        if constexpr (Tile::low_rank_ahead) {
          rest[i / 2][i % 2] = thread.memory.low_rank[0][deep][out];
        } else {
          rest[i / 2][i % 2] = of(thread.p, tile, index_t{tile.out} + out, index_t{k} + deep);
        }
      }
      if constexpr (Tile::low_rank_ahead) thread.next_low_rank();
    }
    /// Straight from memory; zero behind the ends.
    [[nodiscard]] static __device__ float of(sm90_mixed_parameters const& p, gemm_tile const& tile,
                                             index_t n, index_t k) {
      if (n >= p.n_part || k >= p.low_rank.rank) return 0.0F;
      index_t const expert = tile.expert * p.low_rank.expert[tile.part];
      return low_rank_number<typename Tile::left>(p.low_rank, tile.part, expert, n, k);
    }
    __device__ left_fragment take() {
      left_fragment numbers;
#pragma unroll
      for (int i = 0; i < 4; ++i) numbers.pair[i] = take_term<typename Tile::left>(rest[i]);
      return numbers;
    }
  };

  __device__ __forceinline__ void add_by_warps(mixed_consumer<Tile>& thread, int panels) {
#pragma unroll 1
    for (int panel = 0;;) {
      thread.memory.stages.await_filled(thread.stage);
#pragma unroll
      for (int i = 0; i < Tile::panels; ++i) {
        left_fragment left[steps];
        decode(thread, panel + i, left);
        multiply_by_warps(thread.x(i), left);
      }
      thread.release_kept(thread.stage.slot);
      panel += Tile::panels;
      if (panel == panels) break;
      thread.release(thread.stage.slot);
      thread.stage.next();
    }
  }

  /// In two sets of registers by turns: while the tensor cores read one, codes of the next panel
  /// are decoded into the other. The first panel has been.
  template <int Width>
  __device__ __forceinline__ void add_by_groups(mixed_consumer<Tile>& thread, int panels,
                                                left_fragment (&even)[steps]) {
    left_fragment odd[steps];
#pragma unroll 1
    for (int panel = 1;; panel += 2) {
      advance<Width, 0>(thread, panel, even, odd);
      if (panel + 1 == panels) break;
      advance<Width, 1>(thread, panel + 1, odd, even);
    }
    multiply_by_group<Width>(thread.x(1), odd);
    cute::warpgroup_wait<0>();
    fence_registers(sums_);
  }

  __device__ __forceinline__ void decode(mixed_consumer<Tile>& thread, int panel,
                                         left_fragment (&to)[steps]) const {
    thread.decode(panel, to);
    // Behind the end of k there are no weights: zero, not zero times a scale that may be no number.
    // (And a branch, before which the numbers are computed: before the products are waited for.)
    int const left = thread.left_along_k(panel);
    if (left >= Tile::panel_k) return;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (step * 16 >= left) to[step] = {};
    }
  }

  /// Multiplies panel next - 1, where the thread is, and decodes panel `next`.
  template <int Width, int Odd>
  __device__ __forceinline__ void advance(mixed_consumer<Tile>& thread, int next,
                                          left_fragment (&now)[steps],
                                          left_fragment (&then)[steps]) {
    int const slot = thread.stage.slot;
    multiply_by_group<Width>(thread.x(Odd), now);
    constexpr bool last_of_stage = Tile::panels == 1 || Odd == 1;
    if constexpr (last_of_stage) {
      thread.stage.next();
      thread.memory.stages.await_filled(thread.stage);
    }
    decode(thread, next, then);
    if (Odd == 0 && next == 1) thread.release_kept(slot);
    cute::warpgroup_wait<0>();
    if constexpr (last_of_stage) thread.release(slot);
  }

  template <int Width>
  __device__ __forceinline__ void multiply_by_group(std::uint8_t const* x,
                                                    left_fragment (&now)[steps]) {
    fence(now);
    fence_registers(sums_);
    cute::warpgroup_arrive();
#pragma unroll
    for (unsigned step = 0; step < steps; ++step) {
#pragma unroll
      for (int half = 0; half < Tile::halves; ++half) {
        smem_descriptor const right(cute::cast_smem_ptr_to_uint(x + half * Width * 128));
        wgmma_register_step<typename Tile::left, Width>(now[step], right.along_k(step * 32),
                                                        sums_ + half * (Most / 2),
                                                        std::make_index_sequence<Width / 2>());
      }
    }
    cute::warpgroup_commit_batch();
  }
  /// The products of one step of a panel, by warps, whichever multiply elsewhere: with products of
  /// groups outside of its loop the compiler would not let those in it run ahead.
  __device__ __forceinline__ void add_step(std::uint8_t const* x, int step,
                                           left_fragment const& now) {
    int const matrix = lane_number() / 8, row = lane_number() % 8;
#pragma unroll
    for (int half = 0; half < Tile::halves; ++half) {
#pragma unroll
      for (int first = 0; first < Most; first += 16) {
        if (first >= width_) break;
        bool const both = first + 8 < width_;
        int const at = half * width_ + first + (both ? matrix / 2 * 8 : 0) + row;
        std::uint32_t right[4];
        load_matrices(right,
                      shared_address_of(x + at * 128 + ((step * 2 + matrix % 2) ^ row) * 16));
        multiply_eight(now, half * Most + first, right);
        if (first + 8 < Most && both) {
          multiply_eight(now, half * Most + first + 8, right + 2);
        }
      }
    }
  }
  static __device__ __forceinline__ void fence(left_fragment (&left)[steps]) {
#pragma unroll
    for (auto& numbers : left) fence_registers(numbers);
  }

  /// Two steps at a time; of 8 rows that are left over the right operands of both come together.
  __device__ __forceinline__ void multiply_by_warps(std::uint8_t const* x,
                                                    left_fragment const (&now)[steps]) {
    int const lane = lane_number(), matrix = lane / 8, row = lane % 8;
#pragma unroll
    for (int step = 0; step < steps; step += 2) {
#pragma unroll
      for (int first = 0; first < Most; first += 16) {
        bool const both = first + 8 < Most;
        std::uint32_t right[2][4];
#pragma unroll
        for (int i = 0; i < (both ? 2 : 1); ++i) {
          int const chunk = both ? (step + i) * 2 + matrix % 2 : step * 2 + matrix;
          int const at = first + (both ? matrix / 2 * 8 : 0) + row;
          load_matrices(right[i], shared_address_of(x + at * 128 + (chunk ^ row) * 16));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          std::uint32_t const* const r = both ? right[i] : right[0] + i * 2;
          multiply_eight(now[step + i], first, r);
          if (both) multiply_eight(now[step + i], first + 8, r + 2);
        }
      }
    }
  }
  __device__ __forceinline__ void multiply_eight(left_fragment const& left, int first,
                                                 std::uint32_t const* right) {
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = sums_[first / 2 + i];
    Tile::left::multiply(sums, left.pair, right[0], right[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums_[first / 2 + i] = sums[i];
  }

  __device__ void add_bias(mixed_consumer<Tile> const& thread);
  template <int First, int Count>
  __device__ void lay_out(mixed_consumer<Tile> const& thread, std::uint8_t* to) const;
  template <class Elements, int Count>
  static __device__ void lay_out_pairs(float const* sums, std::uint8_t* to);
  template <class Elements, int Count>
  static __device__ void lay_out_matrices(float const* sums, std::uint8_t* to);

  int width_;
  float sums_[Tile::halves * Most / 2];
};

}  // namespace moe64::cuda
