#pragma once

#include "cuda/kernels/device/expert_place.cuh"
#include "cuda/kernels/gemm/sm80/codes.cuh"
#include "cuda/kernels/gemm/sm90/mixed/tile.cuh"

/// The scale producers: the scales of weights, as f32, into a ring of chunks.
namespace moe64::cuda {

/// W8A16: by one warp, scales of rows or of blocks.
template <class Tile>
class block_scale_producer {
 public:
  __device__ block_scale_producer(sm90_mixed_parameters const& p, mixed_memory<Tile>& memory)
      : p_(p), memory_(memory) {}
  __device__ void load(gemm_tile const& tile) {
    int const blocks = static_cast<int>(ceil_div(p_.k_part, index_t{128}));  // narrow-ok: an int
    if (lane_number() == 0) find_places(tile);
    __syncwarp();
    if constexpr (Tile::transposed) {
      load_along_k(tile, blocks);
    } else {
      load_blocks(tile, blocks);
    }
  }

 private:
  static constexpr int per_lane = Tile::outs / 32;
  static_assert(Tile::outs == Tile::chunk_scales && Tile::outs % scale_chunk == 0);

  __device__ void find_places(gemm_tile const& tile) {
    for (int part = 0; part < (Tile::transposed ? p_.k_parts : 1); ++part) {
      index_t const place =
          scale_place_of(p_.expert_place[Tile::transposed ? part : tile.part], tile.expert);
      memory_.scale_place[part] = static_cast<int>(place);  // narrow-ok: host looked
    }
  }

  __device__ void load_blocks(gemm_tile const& tile, int blocks) {
    block_scales const& scales = p_.scales[tile.part];
    index_t const n = p_.row_scales ? tile.out : tile.out / 128 / scales.n_blocks;
    index_t const place = memory_.scale_place[0], from = place * scales.expert + n * scales.n;
    // How many there are, of outputs or along k; past them 0. NaN without a place.
    int const count = p_.row_scales ? within(p_.n_part - tile.out, Tile::outs) : blocks;
    for (int first = 0; first < blocks; first += scale_chunk) {
      float scale[per_lane];
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        int const number = (p_.row_scales ? 0 : first) + i * 32 + lane_number();
        index_t const at = p_.row_scales ? number * scales.n : number / scales.k_blocks * scales.k;
        scale[i] = number >= count ? 0.0F
                   : place < 0     ? not_a_number()
                                   : load_number(scales.type, scales.data, from + at);
      }
      memory_.scales.await_free(at_);
#pragma unroll
      for (int i = 0; i < per_lane; ++i) memory_.scale[at_.slot][i * 32 + lane_number()] = scale[i];
      arrive(memory_.scales.filled[at_.slot]);
      at_.next();
    }
  }

  /// One for each element along k; several chunks are in flight, to cover the latency of global
  /// memory.
  __device__ void load_along_k(gemm_tile const& tile, int blocks) {
    constexpr int in_flight = 4;
    int const all = p_.k_parts * blocks;
    for (int first = 0; first < all; first += in_flight) {
      std::uint32_t code[in_flight][per_lane];
#pragma unroll
      for (int c = 0; c < in_flight; ++c) {
        int const part = first + c < blocks ? 0 : 1;
#pragma unroll
        for (int i = 0; i < per_lane; ++i) {
          int const k = (first + c - part * blocks) * 128 + i * 32 + lane_number();
          code[c][i] = first + c < all ? code_of(tile, part, k) : 0;
        }
      }
#pragma unroll
      for (int c = 0; c < in_flight; ++c) {
        if (first + c >= all) break;
        memory_.scales.await_free(at_);
#pragma unroll
        for (int i = 0; i < per_lane; ++i) {
          memory_.scale[at_.slot][i * 32 + lane_number()] =
              scale_of_code(p_.scales[0].type, code[c][i]);
        }
        arrive(memory_.scales.filled[at_.slot]);
        at_.next();
      }
    }
  }

  /// The scale of element k of a part along k, as stored; without a place all ones, which is NaN in
  /// each type.
  [[nodiscard]] __device__ std::uint32_t code_of(gemm_tile const& tile, int part, int k) const {
    block_scales const& scales = p_.scales[part];
    if (k >= p_.k_part || tile.out >= p_.n_part) return 0;
    index_t const at = p_.row_scales ? k * scales.k
                                     : tile.out / 128 / scales.n_blocks * scales.n +
                                           k / 128 / scales.k_blocks * scales.k;
    index_t const place = memory_.scale_place[part];
    return place < 0 ? ~0U : load_code(scales.type, scales.data, place * scales.expert + at);
  }

  sm90_mixed_parameters const& p_;
  mixed_memory<Tile>& memory_;
  ring_place<Tile::scale_slots> at_;
};

/// The scales of one output for 128 along k as they are stored, one after the other.
struct scale_run {
  std::uint32_t word[max_run_bytes / 4];

  /// Scale i, where each has `Bytes` bytes; 0 past the end of the run.
  template <int Bytes>
  [[nodiscard]] __device__ std::uint32_t code(int i) const {
    if (i * Bytes >= max_run_bytes) return 0;
    std::uint32_t const from_it = word[i * Bytes / 4] >> i * Bytes % 4 * 8;
    return Bytes == 4 ? from_it : from_it & ((1U << Bytes * 8 % 32) - 1);
  }
};

/// W4A16: by Tile::scale_warps warps, of which this is number `warp`, scales of groups; several
/// chunks are in flight, to cover the latency of global memory.
template <class Tile>
class group_scale_producer {
 public:
  __device__ group_scale_producer(sm90_mixed_parameters const& p, mixed_memory<Tile>& memory,
                                  int warp)
      : p_(p), memory_(memory), first_(warp * per_lane * 32 + lane_number()) {}
  __device__ void load(gemm_tile const& tile) {
    switch (p_.groups[tile.part].type) {
      case dtype::e8m0:
        return load_all<dtype::e8m0>(tile);
      case dtype::e4m3:
        return load_all<dtype::e4m3>(tile);
      case dtype::bf16:
        return load_all<dtype::bf16>(tile);
      case dtype::f16:
        return load_all<dtype::f16>(tile);
      default:
        return load_all<dtype::f32>(tile);
    }
  }

 private:
  static constexpr int per_lane = Tile::outs / 32 / Tile::scale_warps;
  static constexpr int in_flight = Tile::scale_warps;

  template <dtype Type>
  __device__ void load_all(gemm_tile const& tile) {
    group_scales const& scales = p_.groups[tile.part];
    constexpr int bytes = bits(Type) / 8;
    index_t const place = scale_place_of(p_.expert_place[tile.part], tile.expert);
    std::uint8_t const* lines[per_lane];  // null: there are no weights
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      index_t const out = tile.out + first_ + i * 32;
      index_t const line = place * scales.expert + out / scales.outs_per_scale * scales.n;
      bool const there = out < p_.n_part && place >= 0;
      lines[i] = there ? static_cast<std::uint8_t const*>(scales.data) + line * bytes : nullptr;
    }
    float const* const global = scales.global;
    float const factor = place < 0           ? not_a_number()
                         : global == nullptr ? 1.0F
                                             : global[tile.expert * scales.global_expert];
    int const chunks = static_cast<int>(ceil_div(p_.k_part, index_t{128}));  // narrow-ok: an int
#pragma unroll 1
    for (int first = 0; first < chunks; first += in_flight) {
      scale_run runs[in_flight][per_lane];
#pragma unroll
      for (int c = 0; c < in_flight; ++c) {
        if (first + c < chunks) read(scales, bytes, lines, first + c, runs[c]);
      }
#pragma unroll
      for (int c = 0; c < in_flight; ++c) {
        if (first + c < chunks) publish<Type>(scales, factor, runs[c]);
      }
    }
  }

  __device__ static void read(group_scales const& scales, int bytes,
                              std::uint8_t const* const (&lines)[per_lane], int chunk,
                              scale_run (&runs)[per_lane]) {
    int const first =
        scales.scales_per_run > 1 ? chunk * scales.scales_per_run : chunk / scales.runs_per_scale;
    // The last run of a line may be cut off.
    int const there = within(scales.scales_along_k - first, scales.scales_per_run) * bytes;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      runs[i] = {};
      if (lines[i] == nullptr) continue;
      std::uint8_t const* const from = lines[i] + first * bytes;
      if (scales.alignment == 4 && there % 4 == 0) {
        read_pieces<std::uint32_t>(from, there, runs[i]);
      } else if (scales.alignment >= 2 && there % 2 == 0) {
        read_pieces<std::uint16_t>(from, there, runs[i]);
      } else {
        read_pieces<std::uint8_t>(from, there, runs[i]);
      }
    }
  }
  template <class Piece>
  static __device__ void read_pieces(std::uint8_t const* from, int bytes, scale_run& run) {
    constexpr int size = sizeof(Piece);
#pragma unroll
    for (int i = 0; i < max_run_bytes / size; ++i) {
      if (i * size >= bytes) break;
      run.word[i * size / 4] |= std::uint32_t{reinterpret_cast<Piece const*>(from)[i]}
                                << i * size % 4 * 8;
    }
  }

  /// `factor`: the global scale; 1 without one, which changes nothing; NaN without a place.
  template <dtype Type>
  __device__ void publish(group_scales const& scales, float factor,
                          scale_run const (&runs)[per_lane]) {
    memory_.scales.await_free(at_);
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      if (g == scales.scales_per_run) break;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        float const scale = scale_of_code(Type, runs[i].template code<bits(Type) / 8>(g));
        float& to = memory_.scale[at_.slot][g * Tile::outs + first_ + i * 32];
        to = scales.global_divides ? scale / factor : scale * factor;
      }
    }
    arrive(memory_.scales.filled[at_.slot]);
    at_.next();
  }

  sm90_mixed_parameters const& p_;
  mixed_memory<Tile>& memory_;
  int first_;  ///< of its outputs, which are 32 apart
  ring_place<Tile::scale_slots> at_;
};

}  // namespace moe64::cuda
