#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_wide.cuh"

namespace moe64::cuda {

/// Which thread this is, found anew at every use: the sums leave no register for what could be
/// kept, and a register kept in memory waits behind all that the copy engine brings.
struct this_thread {
  [[nodiscard]] static __device__ __forceinline__ int number() {
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
  }
  [[nodiscard]] static __device__ __forceinline__ int lane() { return number() % 32; }
  [[nodiscard]] static __device__ __forceinline__ int warp() { return number() / 32 % 4; }
};

/// What a thread of a group keeps from tile to tile.
template <class Tile>
struct wide_thread {
  grouped_gemm_wgmma_parameters const& p;
  wide_memory<Tile>& memory;
  int group;  ///< of all lanes of a warp the same, which the compiler must know
  ring_place<Tile::stages> stage;
  ring_place<Tile::chunks> scales;

  __device__ wide_thread(grouped_gemm_wgmma_parameters const& p_, wide_memory<Tile>& memory_)
      : p(p_), memory(memory_), group(__shfl_sync(~0U, this_thread::number() / 128 - 1, 0)) {}

  /// By the whole warp: it will not look at the stage again.
  __device__ __forceinline__ void release(int slot) const {
    __syncwarp();
    bool const elected = cute::elect_one_sync() != 0;  // which lane it is would take a register
#pragma unroll
    for (int block = 0; block < Tile::cluster; ++block) {
      arrive_at(memory.stages.used[slot], block, elected);
    }
  }
  __device__ __forceinline__ void release_scales() {
    __syncwarp();
    if (cute::elect_one_sync() != 0) arrive(memory.scales.used[scales.slot]);
    scales.next();
  }
};

/// The sums of one thread of a group of four warps: of `Whole` blocks of 64 rows by all outputs of
/// the tile; of a block that both groups share (`Half`) by 64 outputs of each; and of the rest of
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
#pragma unroll
    for (int i = 0; i < Whole; ++i) {
      store_rows<Tile::outs>(tile, bf16, (group_ * Whole + i) * Tile::block, 0, whole_[i]);
    }
    if constexpr (Half) {
      store_rows<64>(tile, bf16, 2 * Whole * Tile::block, group_ * 64, half_);
    }
    if constexpr (Rest) store_rest(tile, bf16);
  }
  /// Times the scales of outputs, plus bias.
  __device__ void finish(gemm_tile const& tile) {
    if (!has_output_terms(p_, tile)) return;
    // Both groups use them: those of the last tile until here.
    cutlass::arch::NamedBarrier::arrive_and_wait(256, 2U);
    if (group_ == 0) load_output_terms(p_, tile, 0, memory_.terms);
    cutlass::arch::NamedBarrier::arrive_and_wait(256, 2U);
    int const column = this_thread::lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < Whole; ++i) finish_rows<Tile::outs>(column, whole_[i]);
    if constexpr (Half) finish_rows<64>(group_ * 64 + column, half_);
    if constexpr (Rest) {
      int const out = group_ * 64 + this_thread::warp() * 16 + this_thread::lane() / 4;
#pragma unroll
      for (int i = 0; i < Tile::rest / 2; ++i) rest_[i] = finished(rest_[i], out + i % 4 / 2 * 8);
    }
    // Now their memory is for y.
    cutlass::arch::NamedBarrier::arrive_and_wait(256, 2U);
  }

 private:
  using numbers = typename Tile::numbers;
  using row_scales = float[Tile::chunk];
  /// Scales of rows from the thread's first one on, and of the outputs: block k of a chunk.
  struct block_scales {
    row_scales const* rows;
    float const* outs;
    int k;
  };
  static constexpr int blocks = 2 * Whole + (Half ? 1 : 0);

  template <int Count>
  static __device__ __forceinline__ void zero(float (&sums)[Count]) {
#pragma unroll
    for (float& sum : sums) sum = 0.0F;
  }
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
  /// and adds, the tensor cores multiply for the other. Little is done between a stage's coming and
  /// its products: places are found once for the chunk.
  __device__ __forceinline__ void add_chunk(int left) {
    memory_.scales.await_filled(thread_.scales);
    row_scales const* const of_rows = memory_.row_scale[thread_.scales.slot];
    float const* const of_outs = memory_.out_scale[thread_.scales.slot];
    int const thread = this_thread::number(), lane = thread % 32;
    row_scales const* const left_rows = of_rows + thread / 32 % 4 * 16 + lane / 4;
    // Where registers allow it, and for the most common tiles: the code of others had better be
    // short.
#pragma unroll(Whole == 2 && !Rest ? Tile::chunk : 1)
    for (int k = 0; k < Tile::chunk; ++k) {
      if (k >= left) break;
      int const slot = thread_.stage.slot;
      memory_.stages.await_filled(thread_.stage);
      row_factors factors[Whole == 0 ? 1 : Whole];
#pragma unroll
      for (int i = 0; i < Whole; ++i) {
        float products[Tile::outs / 2];
        int const row = group_ * Whole * Tile::block;
        begin<Tile::outs>(rows(slot, row + i * Tile::block), weights(slot, 0), products);
        // While products are under way: waiting for what is read would keep them waiting.
#pragma unroll
        for (int j = 0; i == 0 && j < Whole; ++j) {
          factors[j] = read_factors({left_rows + row + j * Tile::block, of_outs, k});
        }
        end(products);
        if (i + 1 == Whole && !Half && !Rest) thread_.release(slot);
        add_scaled(products, factors[i], whole_[i]);
      }
      if constexpr (Half) {
        constexpr int row = 2 * Whole * Tile::block;
        float products[32];
        begin<64>(rows(slot, row), weights(slot, group_ * 64), products);
        row_factors const factors_of_half = read_factors({left_rows + row, of_outs, k});
        end(products);
        if (!Rest) thread_.release(slot);
        add_scaled(products, factors_of_half, half_);
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
  struct row_factors {
    float upper, lower;
  };
  static __device__ __forceinline__ row_factors read_factors(block_scales const& scales) {
    float const of_outs = read_now(scales.outs[scales.k]);
    return {read_now(scales.rows[0][scales.k]) * of_outs,
            read_now(scales.rows[8][scales.k]) * of_outs};
  }
  template <int Count>
  static __device__ __forceinline__ void add_scaled(float const (&products)[Count],
                                                    row_factors const& by, float (&sums)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      sums[i] = __fmaf_rn(products[i], i % 4 < 2 ? by.upper : by.lower, sums[i]);
    }
  }
  /// Not earlier: there are no registers for it.
  static __device__ __forceinline__ float read_now(float const& shared) {
    float number;
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(number)
                 : "r"(cute::cast_smem_ptr_to_uint(&shared)));
    return number;
  }
  __device__ __forceinline__ void add_rest(int slot, block_scales const& scales) {
    float products[Tile::rest / 2];
    begin<Tile::rest>(weights(slot, group_ * 64), rows(slot, blocks * Tile::block), products);
    end(products);
    thread_.release(slot);
    float const of_outs = read_now(scales.outs[scales.k]);
#pragma unroll
    for (int j = 0; j < Tile::rest / 4; ++j) {
      float const factor = read_now(scales.rows[j / 2 * 8 + j % 2][scales.k]) * of_outs;
#pragma unroll
      for (int i = j / 2 * 4 + j % 2; i < j / 2 * 4 + 4; i += 2) {
        rest_[i] = __fmaf_rn(products[i], factor, rest_[i]);
      }
    }
  }
  template <int Right>
  static __device__ __forceinline__ void begin(operand_place const& left,
                                               operand_place const& right,
                                               float (&products)[Right / 2]) {
    fence_registers(products);
    cute::warpgroup_arrive();
    multiply_stage<numbers, Right>(left, right, products, true);
    cute::warpgroup_commit_batch();
  }
  template <int Count>
  static __device__ __forceinline__ void end(float (&products)[Count]) {
    cute::warpgroup_wait<0>();
    fence_registers(products);
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

  [[nodiscard]] __device__ float finished(float sum, int out) const {
    return sum * memory_.terms.factor[out] + memory_.terms.addend[out];
  }
  template <int Outs>
  __device__ __forceinline__ void finish_rows(int first, float (&sums)[Outs / 2]) const {
#pragma unroll
    for (int i = 0; i < Outs / 2; ++i) sums[i] = finished(sums[i], first + i / 4 * 8 + i % 2);
  }

  [[nodiscard]] __device__ std::uint16_t* y_at(gemm_tile const& tile, int row, int out) const {
    return static_cast<std::uint16_t*>(p_.y.data) + (tile.row + index_t{row}) * p_.y.stride[0] +
           tile.part * p_.n_part + out;
  }

  /// 64 rows from `row` of the tile on, outputs from `out` of it on: by each warp 16 rows by 64
  /// outputs at a time, of which a thread then has 8 outputs of four rows.
  template <int Outs>
  __device__ void store_rows(gemm_tile const& tile, bool bf16, int row, int out,
                             float (&sums)[Outs / 2]) {
    constexpr int cols = Tile::out_cols, at_once = 32 / (cols / 8),
                  turns = Tile::out_rows / at_once;
    int const lane = this_thread::lane(), warp = this_thread::warp();
    int const first = lane / (cols / 8), eight = lane % (cols / 8);
    std::uint8_t* const buffer = memory_.out[group_ * 4 + warp];
    row += warp * Tile::out_rows;
    out += tile.out;
    bool const whole = p_.y_vectors && row + Tile::out_rows <= tile.rows && out + Outs <= p_.n_part;
    row += first;
    out += eight * 8;
    std::uint16_t* y = y_at(tile, row, out);
    index_t const step = at_once * p_.y.stride[0];
#pragma unroll
    for (int col = 0; col < Outs; col += cols) {
      // Four 8 x 8 matrices: rows 0 and 8 of outputs 0, then of outputs 8; the same further on.
#pragma unroll
      for (int i = 0; i < cols; i += 16) {
        float const* const s = sums + (col + i) / 2;
        auto& to = *reinterpret_cast<cute::uint128_t*>(
            buffer + Tile::place_out(lane % 16, i / 8 + lane / 16));
        cute::SM90_U32x4_STSM_N::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16),
                                      packed(s[4], s[5], bf16), packed(s[6], s[7], bf16), to);
      }
      __syncwarp();
      std::uint16_t* to = y;
      if (whole) {
        uint4 eights[turns];
#pragma unroll
        for (int i = 0; i < turns; ++i) {
          eights[i] =
              *reinterpret_cast<uint4 const*>(buffer + Tile::place_out(i * at_once + first, eight));
        }
#pragma unroll
        for (int i = 0; i < turns; ++i, to += step) *reinterpret_cast<uint4*>(to) = eights[i];
      } else if (out < p_.n_part) {
#pragma unroll 1
        for (int i = 0; i < Tile::out_rows; i += at_once, to += step) {
          if (row + i >= tile.rows) break;
          write_eight(p_, buffer + Tile::place_out(i + first, eight), to, out);
        }
      }
      out += cols;
      y += cols;
      __syncwarp();
    }
  }
  __device__ void store_rest(gemm_tile const& tile, bool bf16) {
    int const lane = this_thread::lane(), warp = this_thread::warp();
    std::uint8_t* const buffer = memory_.out[group_ * 4 + warp];
    // Four 8 x 8 matrices, transposed: rows 0 and 8 by outputs 0 and 8 of the warp's 16.
    std::uint8_t* const to = buffer + Tile::place_out(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    int const out = tile.out + group_ * 64 + warp * 16 + lane % 2 * 8;
#pragma unroll
    for (int first = 0; first < Tile::rest; first += 16) {
      float const* const s = rest_ + first / 2;
      cute::SM90_U16x8_STSM_T::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16),
                                    packed(s[4], s[5], bf16), packed(s[6], s[7], bf16),
                                    *reinterpret_cast<cute::uint128_t*>(to));
      __syncwarp();
      int const row = blocks * Tile::block + first + lane / 2;
      if (row < tile.rows && out < p_.n_part) {
        write_eight(p_, buffer + Tile::place_out(lane / 2, lane % 2), y_at(tile, row, out), out);
      }
      __syncwarp();
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

}  // namespace moe64::cuda
