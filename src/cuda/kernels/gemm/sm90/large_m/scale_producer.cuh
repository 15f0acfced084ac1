#pragma once

#include "cuda/kernels/gemm/sm90/large_m/tile.cuh"

namespace moe64::cuda {

/// By warps 2 and 3: the scales of rows and of the tile's outputs, a chunk along k at a time.
template <class Tile>
class scale_producer {
 public:
  __device__ scale_producer(sm90_gemm_parameters const& p, large_m_memory<Tile>& memory,
                            int k_blocks)
      : p_(p), memory_(memory), k_blocks_(k_blocks), number_(thread_number() - 64) {}

  __device__ void run() {
    tile_reader reader(memory_.tile, memory_.tiles);
    gemm_tile tile;
    while (reader.next(tile)) {
      // f32 need no register on their way; others are decoded.
      if (p_.x_scales.type == dtype::f32) {
        auto const* const scales = static_cast<float const*>(p_.x_scales.data);
        if (p_.x_scales_at_once == 4) {
          bring(tile, [&](index_t row, int k, float* to) { copy<16>(scales + row + k, to); });
        } else if (p_.x_scales_at_once == 2) {
          bring(tile, [&](index_t row, int k, float* to) {
            copy<8>(scales + row + k, to);
            if (k + 2 < k_blocks_) copy<8>(scales + row + k + 2, to + 2);
          });
        } else {
          bring(tile, [&](index_t row, int k, float* to) {
            each_of(k, [&](int i, index_t at) { copy<4>(scales + row + at, to + i); });
          });
        }
      } else if (p_.x_scales.type == dtype::bf16) {
        bring(tile, [this](index_t row, int k, float* to) {
          each_of(k, [&](int i, index_t at) {
            to[i] = decode_bf16(static_cast<std::uint16_t const*>(p_.x_scales.data)[row + at]);
          });
        });
      } else {
        bring(tile, [this](index_t row, int k, float* to) {
          each_of(k, [&](int i, index_t at) {
            to[i] = decode_e8m0(static_cast<std::uint8_t const*>(p_.x_scales.data)[row + at]);
          });
        });
      }
    }
  }

 private:
  static constexpr int each = (Tile::most_rows + Tile::scale_threads - 1) / Tile::scale_threads;

  template <int Bytes>
  static __device__ void copy(float const* from, float* to) {
    auto const there = cute::cast_smem_ptr_to_uint(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(there), "l"(from), "n"(Bytes)
                 : "memory");
  }
  /// Of the blocks along k from k on: number in the chunk, and where its scale is in a row.
  template <class Body>
  __device__ __forceinline__ void each_of(int k, Body body) const {
#pragma unroll 1
    for (int i = 0; i < Tile::chunk && k + i < k_blocks_; ++i) {
      body(i, (k + i) / p_.x_scales.k_blocks * p_.x_scales.k);
    }
  }

  template <class Bring>
  __device__ __forceinline__ void bring(gemm_tile const& tile, Bring bring_row) {
    block_scales const& outs = p_.weight_scales[tile.part];
    constexpr int block_outs = 128;
    int const block = tile.out / block_outs + number_ / Tile::chunk % Tile::out_blocks;
    bool const none = block * block_outs >= p_.n_part || outs.data == nullptr;
    index_t const n = none ? 0 : block / outs.n_blocks;
    index_t const place = scale_place_of(p_.expert_place[tile.part], tile.expert);
    index_t const first_of_outs = place < 0 ? no_place : place * outs.expert + n * outs.n;
    scale_row const of_outs(outs, place, n);
    // Rows behind the tile have the scale of its last one: what they give is not stored.
    index_t row[each];
#pragma unroll
    for (int j = 0; j < each; ++j) {
      int const r = j * Tile::scale_threads + number_;
      row[j] = (index_t{tile.row} + (r < tile.rows ? r : tile.rows - 1)) * p_.x_scales.n;
    }
#pragma unroll 1
    for (int k = 0; k < k_blocks_; k += Tile::chunk) {
      memory_.scales.await_free(at_);
#pragma unroll
      for (int j = 0; j < each; ++j) {
        int const r = j * Tile::scale_threads + number_;
        if (r < Tile::most_rows) bring_row(row[j], k, memory_.row_scale[at_.slot][r]);
      }
      int const in_chunk = Tile::out_blocks == 1 ? number_ : number_ % Tile::chunk;
      if (number_ < Tile::chunk * Tile::out_blocks && k + in_chunk < k_blocks_) {
        float* const to = &memory_.out_scale[at_.slot][number_];
        if (outs.data != nullptr && outs.type == dtype::f32 && first_of_outs >= 0) {
          copy<4>(static_cast<float const*>(outs.data) + first_of_outs +
                      (k + in_chunk) / outs.k_blocks * outs.k,
                  to);
        } else {
          *to = of_outs.at(k + in_chunk);
        }
      }
      __threadfence_block();  // what was stored, not copied, is seen with the arrival
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                       cute::cast_smem_ptr_to_uint(&memory_.scales.filled[at_.slot]))
                   : "memory");
      at_.next();
    }
  }

  sm90_gemm_parameters const& p_;
  large_m_memory<Tile>& memory_;
  int k_blocks_, number_;
  ring_place<Tile::chunks> at_;
};

}  // namespace moe64::cuda
