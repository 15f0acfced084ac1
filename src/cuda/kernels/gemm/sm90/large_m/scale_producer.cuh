#pragma once

#include "cuda/kernels/gemm/sm90/block_scale_row.cuh"
#include "cuda/kernels/gemm/sm90/large_m/tile.cuh"

namespace moe64::cuda {

/// W8A8, by two warps: the scales of rows and of the tile's outputs, a chunk of k-blocks at a time.
template <class Tile>
class large_m_scale_producer {
 public:
  __device__ large_m_scale_producer(sm90_gemm_parameters const& p, large_m_memory<Tile>& memory,
                                    int k_blocks)
      : p_(p),
        memory_(memory),
        k_blocks_(k_blocks),
        thread_(thread_number() - first_scale_warp * 32) {}

  __device__ void run() {
    tile_reader reader(memory_.tile, memory_.tiles);
    gemm_tile tile;
    while (reader.next(tile)) {
      // f32 by cp.async, without a register; others are decoded.
      if (p_.x_scales.type == dtype::f32) {
        auto const* const scales = static_cast<float const*>(p_.x_scales.data);
        if (p_.x_scales_per_copy == 4) {
          produce(tile, [&](index_t row, int k, float* to) { copy<16>(scales + row + k, to); });
        } else if (p_.x_scales_per_copy == 2) {
          produce(tile, [&](index_t row, int k, float* to) {
            copy<8>(scales + row + k, to);
            if (k + 2 < k_blocks_) copy<8>(scales + row + k + 2, to + 2);
          });
        } else {
          produce(tile, [&](index_t row, int k, float* to) {
            for_each_block(k, [&](int i, index_t at) { copy<4>(scales + row + at, to + i); });
          });
        }
      } else if (p_.x_scales.type == dtype::bf16) {
        produce(tile, [this](index_t row, int k, float* to) {
          for_each_block(k, [&](int i, index_t at) {
            to[i] = decode_bf16(static_cast<std::uint16_t const*>(p_.x_scales.data)[row + at]);
          });
        });
      } else {
        produce(tile, [this](index_t row, int k, float* to) {
          for_each_block(k, [&](int i, index_t at) {
            to[i] = decode_e8m0(static_cast<std::uint8_t const*>(p_.x_scales.data)[row + at]);
          });
        });
      }
    }
  }

 private:
  static constexpr int rows_per_thread = (Tile::most_rows + scale_threads - 1) / scale_threads;

  template <int Bytes>
  static __device__ void copy(float const* from, float* to) {
    auto const there = cute::cast_smem_ptr_to_uint(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(there), "l"(from), "n"(Bytes)
                 : "memory");
  }
  /// body(number in the chunk, place in a row of scales) for each k-block of the chunk from k on.
  template <class Body>
  __device__ __forceinline__ void for_each_block(int k, Body body) const {
#pragma unroll 1
    for (int i = 0; i < Tile::chunk && k + i < k_blocks_; ++i) {
      body(i, (k + i) / p_.x_scales.k_blocks * p_.x_scales.k);
    }
  }

  template <class Row>
  __device__ __forceinline__ void produce(gemm_tile const& tile, Row produce_row) {
    block_scales const& outs = p_.weight_scales[tile.part];
    constexpr int block_outs = 128;
    int const block = tile.out / block_outs + thread_ / Tile::chunk % Tile::out_blocks;
    bool const none = block * block_outs >= p_.n_part || outs.data == nullptr;
    index_t const n = none ? 0 : block / outs.n_blocks;
    index_t const place = scale_place_of(p_.expert_place[tile.part], tile.expert);
    index_t const first_of_outs = place < 0 ? no_place : place * outs.expert + n * outs.n;
    block_scale_row const of_outs(outs, place, n);
    // Rows behind the tile have the scale of its last one: their products are not stored.
    index_t row[rows_per_thread];
#pragma unroll
    for (int j = 0; j < rows_per_thread; ++j) {
      int const r = j * scale_threads + thread_;
      row[j] = (index_t{tile.row} + (r < tile.rows ? r : tile.rows - 1)) * p_.x_scales.n;
    }
#pragma unroll 1
    for (int k = 0; k < k_blocks_; k += Tile::chunk) {
      memory_.scales.await_free(at_);
#pragma unroll
      for (int j = 0; j < rows_per_thread; ++j) {
        int const r = j * scale_threads + thread_;
        if (r < Tile::most_rows) produce_row(row[j], k, memory_.row_scale[at_.slot][r]);
      }
      int const in_chunk = Tile::out_blocks == 1 ? thread_ : thread_ % Tile::chunk;
      if (thread_ < Tile::chunk * Tile::out_blocks && k + in_chunk < k_blocks_) {
        float* const to = &memory_.out_scale[at_.slot][thread_];
        if (outs.data != nullptr && outs.type == dtype::f32 && first_of_outs >= 0) {
          copy<4>(static_cast<float const*>(outs.data) + first_of_outs +
                      (k + in_chunk) / outs.k_blocks * outs.k,
                  to);
        } else {
          *to = of_outs.at(k + in_chunk);
        }
      }
      __threadfence_block();  // ordinary stores are seen with the arrival
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                       cute::cast_smem_ptr_to_uint(&memory_.scales.filled[at_.slot]))
                   : "memory");
      at_.next();
    }
  }

  sm90_gemm_parameters const& p_;
  large_m_memory<Tile>& memory_;
  int k_blocks_, thread_;
  ring_place<Tile::chunks> at_;
};

}  // namespace moe64::cuda
