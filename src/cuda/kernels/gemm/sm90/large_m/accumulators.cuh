#pragma once

#include "cuda/kernels/gemm/sm90/large_m/consumer.cuh"

namespace moe64::cuda {

/// The sums of one thread of a group of four warps: of `Whole` blocks of 64 rows by all outputs of
/// the tile; of a block that two groups share (`Half`) by 64 outputs of each; and of the rest of
/// the rows (`Rest`), which are the right operand, by 64 outputs of each.
///
/// Of 64 x n sums the tensor cores give a thread, on the left, 16 * warp + lane / 4 and that + 8,
/// and on the right, of each 8, the two from lane % 4 * 2 on.
template <class Tile, int Whole, bool Half, bool Rest>
class consumer_accumulators {
 public:
  __device__ explicit consumer_accumulators(consumer_thread<Tile>& thread)
      : thread_(thread), p_(thread.p), memory_(thread.memory), group_(thread.group) {
#pragma unroll
    for (auto& block : whole_) zero(block);
    zero(half_);
    zero(rest_);
  }

  /// Adds the products over all of k.
  __device__ __forceinline__ void add(int k_blocks) {
    if constexpr (elements::scaled) {
      add_codes(k_blocks);
    } else {
      int last = -1;  // stage whose products may not be done
#pragma unroll 1
      for (int k = 0; k < k_blocks; ++k) {
        memory_.stages.await_filled(thread_.stage);
        add_numbers();
        // All but the products that have just begun are done.
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

  /// After finish(): rounded once to bf16 or f16.
  __device__ void store(gemm_tile const& tile) {
    bool const bf16 = p_.y.type == dtype::bf16;
    if constexpr (Tile::hands) {
      thread_.await_handed();
      if constexpr (Whole == 1) {
        if (hand_over(thread_, tile, bf16, group_ * Tile::block, whole_[0])) return;
      }
    }
#pragma unroll
    for (int i = 0; i < Whole; ++i) {
      store_rows<Tile::outs>(tile, bf16, (group_ * Whole + i) * Tile::block, 0, whole_[i]);
    }
    if constexpr (Half) {
      store_rows<64>(tile, bf16, 2 * Whole * Tile::block, group_ * 64, half_);
    }
    if constexpr (Rest) {
      store_tail(thread_, tile, bf16, blocks * Tile::block, group_ * 64, rest_);
    }
  }
  /// Times the scales of outputs, plus bias.
  __device__ void finish(gemm_tile const& tile) {
    if (!has_output_terms(p_, tile)) return;
    int const column = thread_index::lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < Whole; ++i) finish_rows<Tile::outs>(column, whole_[i]);
    if constexpr (Half) finish_rows<64>(group_ * 64 + column, half_);
    if constexpr (Rest) finish_tail<Tile>(memory_.terms, group_ * 64, rest_);
  }

 private:
  using elements = typename Tile::elements;
  static constexpr int pieces = Tile::outs == 192 ? 3 : 1;
  /// Where registers allow it, and for the most common tiles: the code of others had better be
  /// short.
  static constexpr bool unrolled =
      !Half && !Rest && (Whole == 2 || (Whole == 1 && (Tile::groups == 3 || pieces == 3)));
  struct out_scales {
    float of[pieces];
  };
  /// Of the two rows that a thread has on the left.
  struct row_scale_pair {
    float upper, lower;
  };
  static constexpr int blocks = 2 * Whole + (Half ? 1 : 0);

  __device__ __forceinline__ void fence_all() {
#pragma unroll
    for (auto& block : whole_) fence_registers(block);
    fence_registers(half_);
    fence_registers(rest_);
  }

  [[nodiscard]] __device__ smem_descriptor weights(int out) const {
    return thread_.operands.further(out * 128);
  }
  [[nodiscard]] __device__ smem_descriptor rows(int row) const {
    return thread_.operands.further(Tile::weight_bytes + row * 128);
  }
  /// Where the scales of a chunk are in shared memory: of the first of the thread's rows, of the
  /// outputs.
  struct scale_places {
    std::uint32_t rows, outs;
  };
  /// Of one block along k: of the outputs, and of the rows of whole blocks.
  struct stage_scales {
    out_scales outs;
    row_scale_pair rows[Whole == 0 ? 1 : Whole];
  };
  static constexpr std::uint32_t row_bytes = Tile::chunk * sizeof(float);

  __device__ __forceinline__ scale_places await_scales() const {
    memory_.scales.await_filled(thread_.scales);
    auto const thread = static_cast<std::uint32_t>(thread_index::number());  // narrow-ok: positive
    std::uint32_t const row = (thread >> 1 & 0x30U) | (thread >> 2 & 7U);    // warp * 16 + lane / 4
    int const slot = thread_.scales.slot;
    return {cute::cast_smem_ptr_to_uint(memory_.row_scale[slot][group_ * Whole * Tile::block]) +
                row * row_bytes,
            cute::cast_smem_ptr_to_uint(memory_.out_scale[slot])};
  }
  /// Block k of the chunk.
  __device__ __forceinline__ stage_scales read_scales(scale_places const& at, int k) const {
    stage_scales found = {};
    if constexpr (Whole > 0) {
      auto const here = static_cast<std::uint32_t>(k) * 4;  // narrow-ok: below chunk
      found.outs = read_outs(at.outs + here);
#pragma unroll
      for (int i = 0; i < Whole; ++i) {
        found.rows[i] = read_pair(at.rows + here, i * Tile::block);
      }
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

  /// The products over all of k. While one group scales and adds, the tensor cores multiply for
  /// another, and little is done between a stage's coming and its products: scales are read while
  /// the products before are scaled, and those of the next chunk awaited while the last products
  /// of this one are under way.
  __device__ __forceinline__ void add_codes(int left) {
    scale_places at = await_scales();
    stage_scales now = read_scales(at, 0);
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
  /// One stage, block k of its chunk. `meanwhile()` while its last products are under way, after
  /// the last look at its scales.
  template <class Meanwhile>
  __device__ __forceinline__ void add_stage(scale_places const& at, int k,
                                            stage_scales const& of_whole, Meanwhile meanwhile) {
    int const slot = thread_.stage.slot, row = group_ * Whole * Tile::block;
    smem_descriptor own = rows(row);
    own.settle();
    memory_.stages.await_filled(thread_.stage);
#pragma unroll
    for (int i = 0; i < Whole; ++i) {
      bool const last = i + 1 == Whole && !Half && !Rest;
      float products[Tile::outs / 2];
      begin_products<elements, Tile::outs>(own.further(i * Tile::block * 128), weights(0),
                                           products);
      if (last) meanwhile();
      end_products(products);
      if (last) thread_.release(slot);
      add_scaled(products, of_whole.rows[i], of_whole.outs, whole_[i]);
    }
    if constexpr (Half) {
      constexpr int shared_row = 2 * Whole * Tile::block;
      auto const here = static_cast<std::uint32_t>(k) * 4;  // narrow-ok: below chunk
      float products[32];
      begin_products<elements, 64>(rows(shared_row), weights(group_ * 64), products);
      row_scale_pair const of_half = read_pair(at.rows + here, shared_row - row);
      out_scales const of_half_out = {{read_now(at.outs + here)}};
      if (!Rest) meanwhile();
      end_products(products);
      if (!Rest) thread_.release(slot);
      add_scaled(products, of_half, of_half_out, half_);
    }
    if constexpr (Rest) {
      // There are no registers for products of both.
      if constexpr (Whole == 2) fence_registers(whole_[1]);
      float products[Tile::rest / 2];
      begin_products<elements, Tile::rest>(weights(group_ * 64), rows(blocks * Tile::block),
                                           products);
      auto const factors = read_tail_scales<Tile>(thread_, blocks * Tile::block, k);
      meanwhile();
      end_products(products);
      thread_.release(slot);
      add_scaled_tail<Tile>(products, factors, rest_);
    }
    thread_.next_stage();
  }
  template <int Count>
  static __device__ __forceinline__ void add_scaled(float const (&products)[Count],
                                                    row_scale_pair const& of_rows,
                                                    out_scales const& of_outs,
                                                    float (&sums)[Count]) {
    float upper[pieces], lower[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
      upper[i] = of_rows.upper * of_outs.of[i];
      lower[i] = of_rows.lower * of_outs.of[i];
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      int const piece = pieces == 1 ? 0 : i / 32;
      sums[i] = __fmaf_rn(products[i], i % 4 < 2 ? upper[piece] : lower[piece], sums[i]);
    }
  }

  __device__ __forceinline__ void add_numbers() {
    fence_all();
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < Whole; ++i) {
      wgmma_stage<elements, Tile::outs>(rows((group_ * Whole + i) * Tile::block), weights(0),
                                        whole_[i], false);
    }
    if constexpr (Half) {
      wgmma_stage<elements, 64>(rows(2 * Whole * Tile::block), weights(group_ * 64), half_, false);
    }
    if constexpr (Rest) {
      wgmma_stage<elements, Tile::rest>(weights(group_ * 64), rows(blocks * Tile::block), rest_,
                                        false);
    }
    cute::warpgroup_commit_batch();
    fence_all();
  }

  template <int Outs>
  __device__ __forceinline__ void finish_rows(int first, float (&sums)[Outs / 2]) const {
#pragma unroll
    for (int i = 0; i < Outs / 2; ++i) {
      sums[i] = memory_.terms.of(first + i / 4 * 8 + i % 2, sums[i]);
    }
  }

  /// 64 rows from `row` of the tile on, outputs from `out` of it on: by each warp out_rows of its
  /// rows by 64 outputs at a time, of which a thread then has 8 outputs of every fourth row.
  template <int Outs>
  __device__ void store_rows(gemm_tile const& tile, bool bf16, int row, int out,
                             float (&sums)[Outs / 2]) {
    constexpr int cols = Tile::out_cols, at_once = 32 / (cols / 8),
                  turns = Tile::out_rows / at_once;
    int const lane = thread_index::lane(), warp = thread_index::warp();
    int const first = lane / (cols / 8), eight = lane % (cols / 8);
    std::uint8_t* const buffer = memory_.out[group_ * 4 + warp];
    row += warp * Tile::warp_rows;
    out += tile.out;
    bool const whole =
        p_.y_vectors && row + Tile::warp_rows <= tile.rows && out + Outs <= p_.n_part;
    row += first;
    out += eight * 8;
    std::uint16_t* y = y_at(p_, tile, row, out);
    index_t const step = at_once * p_.y.stride[0];
#pragma unroll
    for (int col = 0; col < Outs; col += cols) {
      std::uint16_t* to = y;
#pragma unroll
      for (int done = 0; done < Tile::warp_rows; done += Tile::out_rows) {
        lay_out<Tile, Tile::out_rows>(sums + col / 2 + done / 4, bf16, lane, buffer);
        __syncwarp();
        if (whole) {
          uint4 numbers_of_y[turns];
#pragma unroll
          for (int i = 0; i < turns; ++i) {
            numbers_of_y[i] = *reinterpret_cast<uint4 const*>(
                buffer + Tile::place_out(i * at_once + first, eight));
          }
#pragma unroll
          for (int i = 0; i < turns; ++i, to += step) {
            write_whole_eight(to, numbers_of_y[i]);
          }
        } else if (out < p_.n_part) {
#pragma unroll 1
          for (int i = 0; i < Tile::out_rows; i += at_once, to += step) {
            if (row + done + i >= tile.rows) break;
            write_eight(p_, buffer + Tile::place_out(i + first, eight), to, out);
          }
        }
        __syncwarp();
      }
      out += cols;
      y += cols;
    }
  }

  consumer_thread<Tile>& thread_;
  sm90_gemm_parameters const& p_;
  large_m_memory<Tile>& memory_;
  int group_;
  float whole_[Whole == 0 ? 1 : Whole][Tile::outs / 2];
  float half_[32];
  float rest_[Tile::rest / 2];
};

template <class Sums, class Tile>
__device__ __forceinline__ void multiply_sums(consumer_thread<Tile>& thread, gemm_tile const& tile,
                                              int k_blocks) {
  Sums sums(thread);
  sums.add(k_blocks);
  asm volatile("" ::: "memory");  // the tile is read again rather than kept
  sums.finish(tile);
  sums.store(tile);
}

}  // namespace moe64::cuda
