#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_wide_thread.cuh"

namespace moe64::cuda {

/// The sums of one thread of a group of four warps: of `Whole` blocks of 64 rows by all outputs of
/// the tile; of a block that two groups share (`Half`) by 64 outputs of each; and of the rest of
/// the rows (`Rest`), which are the right operand, by 64 outputs of each.
///
/// Of 64 x n sums the tensor cores give a thread, on the left, 16 * warp + lane / 4 and that + 8,
/// and on the right, of each 8, the two from lane % 4 * 2 on.
template <class Tile, int Whole, bool Half, bool Rest>
class wide_sums {
 public:
  __device__ explicit wide_sums(wide_thread<Tile>& thread)
      : thread_(thread), p_(thread.p), memory_(thread.memory), group_(thread.group) {
#pragma unroll
    for (auto& block : whole_) zero(block);
    zero(half_);
    zero(rest_);
  }

  /// Adds the products over all of k.
  __device__ __forceinline__ void add(int k_blocks) {
    if constexpr (numbers::scaled) {
#pragma unroll 1
      for (int k = 0; k < k_blocks; k += Tile::chunk) add_chunk(k_blocks - k);
    } else {
      int last = -1;  // stage whose products may not be done
#pragma unroll 1
      for (int k = 0; k < k_blocks; ++k) {
        memory_.stages.await_filled(thread_.stage);
        add_numbers(thread_.stage.slot);
        // All but the products that have just begun are done.
        cute::warpgroup_wait<1>();
        if (last >= 0) thread_.release(last);
        last = thread_.stage.slot;
        thread_.stage.next();
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
      store_rest(thread_, tile, bf16, blocks * Tile::block, group_ * 64, rest_);
    }
  }
  /// Times the scales of outputs, plus bias.
  __device__ void finish(gemm_tile const& tile) {
    if (!has_output_terms(p_, tile)) return;
    int const column = this_thread::lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < Whole; ++i) finish_rows<Tile::outs>(column, whole_[i]);
    if constexpr (Half) finish_rows<64>(group_ * 64 + column, half_);
    if constexpr (Rest) finish_rest<Tile>(memory_.terms, group_ * 64, rest_);
  }

 private:
  using numbers = typename Tile::numbers;
  using row_scales = float[Tile::chunk];
  using scales = block_scales<Tile>;
  static constexpr int blocks = 2 * Whole + (Half ? 1 : 0);

  __device__ __forceinline__ void fence_all() {
#pragma unroll
    for (auto& block : whole_) fence_registers(block);
    fence_registers(half_);
    fence_registers(rest_);
  }

  [[nodiscard]] __device__ operand_place weights(int slot, int out) const {
    return operand_place(cute::cast_smem_ptr_to_uint(memory_.stage[slot] + out * 128));
  }
  [[nodiscard]] __device__ operand_place rows(int slot, int row) const {
    return operand_place(
        cute::cast_smem_ptr_to_uint(memory_.stage[slot] + Tile::weight_bytes + row * 128));
  }
  /// Blocks along k whose scales came together, of `left` that there are. While one group scales
  /// and adds, the tensor cores multiply for another. Little is done between a stage's coming and
  /// its products: places are found once for the chunk.
  __device__ __forceinline__ void add_chunk(int left) {
    memory_.scales.await_filled(thread_.scales);
    row_scales const* const of_rows = memory_.row_scale[thread_.scales.slot];
    float const* const of_outs = memory_.out_scale[thread_.scales.slot];
    int const thread = this_thread::number(), lane = thread % 32;
    row_scales const* const left_rows = of_rows + thread / 32 % 4 * 16 + lane / 4;
    // Where registers allow it, and for the most common tiles: the code of others had better be
    // short.
#pragma unroll((Whole == 2 || Tile::groups == 3) && !Rest ? Tile::chunk : 1)
    for (int k = 0; k < Tile::chunk; ++k) {
      if (k >= left) break;
      int const slot = thread_.stage.slot, row = group_ * Whole * Tile::block;
      // Before the stage is awaited: so scales come while the last products are scaled, and the
      // next ones do not wait for them. (Of a shared block they are read later: with these they
      // would be too many registers.)
      float const of_out = Whole == 0 ? 0.0F : read_now(of_outs[k]);
      row_scale_pair of_row[Whole == 0 ? 1 : Whole];
#pragma unroll
      for (int i = 0; i < Whole; ++i) of_row[i] = read_pair(left_rows + row + i * Tile::block, k);
      memory_.stages.await_filled(thread_.stage);
#pragma unroll
      for (int i = 0; i < Whole; ++i) {
        float products[Tile::outs / 2];
        begin_products<numbers, Tile::outs>(rows(slot, row + i * Tile::block), weights(slot, 0),
                                            products);
        end_products(products);
        if (i + 1 == Whole && !Half && !Rest) thread_.release(slot);
        add_scaled(products, of_row[i], of_out, whole_[i]);
      }
      if constexpr (Half) {
        constexpr int shared_row = 2 * Whole * Tile::block;
        float products[32];
        begin_products<numbers, 64>(rows(slot, shared_row), weights(slot, group_ * 64), products);
        row_scale_pair const of_half = read_pair(left_rows + shared_row, k);
        float const of_half_out = read_now(of_outs[k]);
        end_products(products);
        if (!Rest) thread_.release(slot);
        add_scaled(products, of_half, of_half_out, half_);
      }
      if constexpr (Rest) {
        // There are no registers for products of both.
        if constexpr (Whole == 2) fence_registers(whole_[1]);
        add_rest(slot, {of_rows + blocks * Tile::block + lane % 4 * 2, of_outs, k});
      }
      thread_.stage.next();
    }
    thread_.release_scales();
  }
  /// Of the two rows that a thread has on the left.
  struct row_scale_pair {
    float upper, lower;
  };
  static __device__ __forceinline__ row_scale_pair read_pair(row_scales const* rows, int k) {
    return {read_now(rows[0][k]), read_now(rows[8][k])};
  }
  template <int Count>
  static __device__ __forceinline__ void add_scaled(float const (&products)[Count],
                                                    row_scale_pair const& of_rows, float of_outs,
                                                    float (&sums)[Count]) {
    float const upper = of_rows.upper * of_outs, lower = of_rows.lower * of_outs;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      sums[i] = __fmaf_rn(products[i], i % 4 < 2 ? upper : lower, sums[i]);
    }
  }
  __device__ __forceinline__ void add_rest(int slot, scales const& of_block) {
    float products[Tile::rest / 2];
    begin_products<numbers, Tile::rest>(weights(slot, group_ * 64),
                                        rows(slot, blocks * Tile::block), products);
    end_products(products);
    thread_.release(slot);
    add_scaled_rest(products, of_block, rest_);
  }

  __device__ __forceinline__ void add_numbers(int slot) {
    fence_all();
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < Whole; ++i) {
      multiply_stage<numbers, Tile::outs>(rows(slot, (group_ * Whole + i) * Tile::block),
                                          weights(slot, 0), whole_[i], false);
    }
    if constexpr (Half) {
      multiply_stage<numbers, 64>(rows(slot, 2 * Whole * Tile::block), weights(slot, group_ * 64),
                                  half_, false);
    }
    if constexpr (Rest) {
      multiply_stage<numbers, Tile::rest>(weights(slot, group_ * 64),
                                          rows(slot, blocks * Tile::block), rest_, false);
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
    int const lane = this_thread::lane(), warp = this_thread::warp();
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
        lay_out<Tile, Tile::out_rows>(sums + col / 2 + done / 4, bf16, buffer);
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
            *reinterpret_cast<uint4*>(to) = numbers_of_y[i];
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

  wide_thread<Tile>& thread_;
  grouped_gemm_wgmma_parameters const& p_;
  wide_memory<Tile>& memory_;
  int group_;
  float whole_[Whole == 0 ? 1 : Whole][Tile::outs / 2];
  float half_[32];
  float rest_[Tile::rest / 2];
};

template <class Sums, class Tile>
__device__ __forceinline__ void multiply_sums(wide_thread<Tile>& thread, gemm_tile const& tile,
                                              int k_blocks) {
  Sums sums(thread);
  sums.add(k_blocks);
  asm volatile("" ::: "memory");  // the tile is read again rather than kept
  sums.finish(tile);
  sums.store(tile);
}

}  // namespace moe64::cuda
