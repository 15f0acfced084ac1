#pragma once

#include "cuda/kernels/grouped_gemm_wgmma_parts.cuh"

#include <cute/arch/copy_sm90.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// Codes of experts with many rows. Here rows are the left operand, in blocks of 64: a thread then
/// needs two scales of rows for 64 sums, which leaves shared memory to the tensor cores. The bits
/// are those of the other kernels.
namespace moe64::cuda {

/// 128 rows by 256 outputs; two blocks of threads that are a pair have the same rows, and each
/// copies half of them for both.
struct wide_tile {
  static constexpr int rows = 128, outs = 256, stages = 4, cluster = 2, threads = 384;
  static constexpr int weight_bytes = outs * 128, stage_bytes = weight_bytes + rows * 128;
  static constexpr bool scaled = true;
  static constexpr int stage_k = 128;
  static constexpr int factors = 2 * rows;    ///< for each 128 outputs one of each row
  static constexpr int out_bytes = 16 * 128;  ///< of a warp: 16 rows of 64 outputs
  /// Where the factor of row r and block b of 128 outputs is.
  [[nodiscard]] static __device__ int factor_place(int b, int r) { return b * rows + r; }
  static constexpr int factor_blocks = 2;
};

struct wide_memory {
  alignas(1024) std::uint8_t stage[wide_tile::stages][wide_tile::stage_bytes];
  alignas(16) float factor[wide_tile::stages][wide_tile::factors];
  alignas(16) std::uint8_t out[8][wide_tile::out_bytes];
  alignas(8) output_terms<wide_tile::outs> terms[2];
  gemm_tile tile[tile_slots];
  ring_barriers<wide_tile::stages> stages;
  ring_barriers<tile_slots> tiles;
  expert_tiles::memory tile_sums;
};

/// The tiles of both parts are numbered in one row; a pair has two neighbours.
struct wide_places {
  index_t tiles_each;  ///< of a part
  int parts;

  [[nodiscard]] __device__ gemm_tile operator()(tile_place const& place, int rank) const {
    index_t const number = place.out_tile * wide_tile::cluster + rank;
    gemm_tile tile;
    tile.expert = static_cast<int>(place.expert);  // narrow-ok: host looked
    tile.row = static_cast<int>(place.row_begin);  // narrow-ok: host looked
    tile.rows = within(place.rows, wide_tile::rows);
    tile.part = parts == 2 && number >= tiles_each ? 1 : 0;
    // One past the last tile of the last part, when their number is odd: nothing is there.
    tile.out = static_cast<int>((number - tile.part * tiles_each) *
                                wide_tile::outs);  // narrow-ok: host looked
    return tile;
  }
};

/// Blocks of 64 rows that a tile has, 1 or 2.
__device__ inline int row_blocks(gemm_tile const& tile) { return tile.rows > 64 ? 2 : 1; }

/// By one thread.
class wide_loader {
 public:
  __device__ wide_loader(grouped_gemm_wgmma_parameters const& p, wide_memory& memory)
      : p_(p), memory_(memory), rank_(static_cast<int>(cute::block_rank_in_cluster())) {}

  __device__ void load(gemm_tile const& tile, int k_blocks) {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    int const half = row_blocks(tile) * 32;
    auto const bytes = static_cast<std::uint32_t>(wide_tile::weight_bytes + 2 * half * 128);
    tensor_map const* const x = &p_.x[half == 32 ? 2 : 3];
    for (int k = 0; k < k_blocks; ++k) {
      memory_.stages.await_free(at_);
      shared_barrier& filled = memory_.stages.filled[at_.slot];
      std::uint8_t* const stage = memory_.stage[at_.slot];
      cute::set_barrier_transaction_bytes(filled, bytes);
#pragma unroll
      for (int i = 0; i < wide_tile::outs / 64; ++i) {
        cute::SM90_TMA_LOAD_3D::copy(&p_.weights[tile.part], &filled, hint, stage + i * 64 * 128,
                                     k * 128, tile.out + i * 64, tile.expert);
      }
      constexpr std::uint16_t both = 3;
      cute::SM90_TMA_LOAD_MULTICAST_2D::copy(x, &filled, both, hint,
                                             stage + wide_tile::weight_bytes + rank_ * half * 128,
                                             k * 128, tile.row + rank_ * half);
      at_.next();
    }
  }

 private:
  grouped_gemm_wgmma_parameters const& p_;
  wide_memory& memory_;
  int rank_;
  ring_place<wide_tile::stages> at_;
};

/// The sums of one thread of a group: rows 16 * warp + lane / 4 and that + 8 of its 64, and of each
/// 8 outputs the two from lane % 4 * 2 on. With 128 rows a group has half of them and all outputs;
/// with 64 it has all rows and half of the outputs.
template <int RowBlocks>
class wide_sums {
 public:
  __device__ wide_sums(grouped_gemm_wgmma_parameters const& p, wide_memory& memory)
      : p_(p), memory_(memory) {
#pragma unroll
    for (auto& block : sums_) {
#pragma unroll
      for (float& sum : block) sum = 0.0F;
    }
  }

  /// Adds the products over one block of 128 along k.
  __device__ __forceinline__ void add(ring_place<wide_tile::stages> const& at) {
    memory_.stages.await_filled(at);
    std::uint8_t* const stage = memory_.stage[at.slot];
    operand_place const rows(
        cute::cast_smem_ptr_to_uint(stage + wide_tile::weight_bytes + first_row() * 128));
    int const lane = lane_number();
    int const row = first_row() + warp_number() % 4 * 16 + lane / 4;
#pragma unroll
    for (int b = 0; b < RowBlocks; ++b) {
      operand_place const weights(cute::cast_smem_ptr_to_uint(stage + block_of(b) * 128 * 128));
      float const* const factors = memory_.factor[at.slot] + block_of(b) * wide_tile::rows + row;
      float const low = factors[0], high = factors[8];
      float products[64];
      fence_registers(products);
      cute::warpgroup_arrive();
      multiply_stage<e4m3_numbers, 128>(rows, weights, products, true);
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<0>();
      fence_registers(products);
      if (b == RowBlocks - 1) arrive_at(memory_.stages.used[at.slot], lane, lane < 2);
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        sums_[b][i] = __fmaf_rn(products[i], i % 4 < 2 ? low : high, sums_[b][i]);
      }
    }
  }

  /// Times the scales of outputs, plus bias, rounded once.
  __device__ void store(gemm_tile const& tile) {
    bool const terms = has_output_terms(p_, tile);
    if (terms) await_group(group());
#pragma unroll
    for (int b = 0; b < RowBlocks; ++b) {
      if (terms) finish(b);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        stage_out(sums_[b] + half * 32);
        write(tile, block_of(b) * 128 + half * 64);
      }
    }
  }

 private:
  [[nodiscard]] static __device__ int group() { return warp_number() / 4 - 1; }
  [[nodiscard]] static __device__ int first_row() { return RowBlocks == 2 ? group() * 64 : 0; }
  /// Which 128 outputs sums_[b] has.
  [[nodiscard]] static __device__ int block_of(int b) { return RowBlocks == 2 ? b : group(); }

  __device__ void finish(int b) {
    output_terms<wide_tile::outs> const& terms = memory_.terms[group()];
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      int const out = block_of(b) * 128 + j * 8 + lane_number() % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& sum = sums_[b][j * 4 + i];
        sum = sum * terms.factor[out + i % 2] + terms.addend[out + i % 2];
      }
    }
  }
  [[nodiscard]] static __device__ int place(int row, int eight) {
    return row * 128 + (eight ^ (row % 8)) * 16;
  }
  /// 16 rows of 64 outputs into the warp's buffer.
  __device__ __forceinline__ void stage_out(float const* sums) const {
    std::uint8_t* const buffer = memory_.out[warp_number() - 4];
    bool const bf16 = p_.y.type == dtype::bf16;
    int const lane = lane_number();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      // Four 8 x 8 matrices: rows 0 and 8 of outputs 8 j, then of 8 j + 8.
      int const row = lane / 8 % 2 * 8 + lane % 8, eight = j + lane / 16;
      auto& to = *reinterpret_cast<cute::uint128_t*>(buffer + place(row, eight));
      float const* const s = sums + j * 4;
      cute::SM90_U32x4_STSM_N::copy(packed(s[0], s[1], bf16), packed(s[2], s[3], bf16),
                                    packed(s[4], s[5], bf16), packed(s[6], s[7], bf16), to);
    }
    __syncwarp();
  }
  __device__ void write(gemm_tile const& tile, int first_out) const {
    std::uint8_t const* const buffer = memory_.out[warp_number() - 4];
    auto* const y = static_cast<std::uint16_t*>(p_.y.data);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const row = i * 4 + lane_number() / 8, eight = lane_number() % 8;
      int const of_tile = first_row() + warp_number() % 4 * 16 + row;
      int const out = tile.out + first_out + eight * 8;
      if (of_tile >= tile.rows || out >= p_.n_part) continue;
      index_t const at =
          (tile.row + index_t{of_tile}) * p_.y.stride[0] + tile.part * p_.n_part + out;
      write_eight(p_, buffer + place(row, eight), y + at, out);
    }
  }

  grouped_gemm_wgmma_parameters const& p_;
  wide_memory& memory_;
  float sums_[RowBlocks][64];
};

}  // namespace moe64::cuda
