#pragma once

#include "cuda/kernels/gemm/sm90/mixed/tile.cuh"
#include "cuda/kernels/gemm/sm90/tma.cuh"

/// The TMA producer: weights and x into the ring of stages.
namespace moe64::cuda {

/// By one thread, stages in the order in which they are multiplied: those of u, if there is a
/// low-rank term, then those of x and weights, one part of k after the other.
template <class Tile>
class mixed_operand_producer {
 public:
  __device__ mixed_operand_producer(sm90_mixed_parameters const& p, mixed_memory<Tile>& memory)
      : p_(p),
        memory_(memory),
        rank_(Tile::cluster == 1 ? 0 : rank_in_cluster()),
        weights_hint_(weights_l2_hint(p.evict_first)) {}
  /// `stages`: of a part of k.
  __device__ void load(gemm_tile const& tile, int stages) {
    for (int part = 0; part < (Tile::transposed ? p_.k_parts : 1); ++part) {
      memory_.matrix[part] =
          matrix_coordinate(p_.expert_place[Tile::transposed ? part : tile.part], tile.expert);
    }
    int const rank = static_cast<int>(p_.low_rank.rank);  // narrow-ok: host looked
    for (int k = 0; k < rank; k += Tile::stage_k) load_stage(tile, 0, p_.u, {k, 0});
    for (int part = 0; part < p_.k_parts; ++part) {
      for (int i = 0; i < stages; ++i) {
        int const k = i * Tile::stage_k;
        load_stage(tile, Tile::weight_bytes, p_.x, {k, part});
      }
    }
  }

 private:
  /// Where along k.
  struct depth {
    int k, part;
  };

  /// `rows`: the tensor maps of x or u.
  __device__ void load_stage(gemm_tile const& tile, int weight_bytes, tensor_map const* rows,
                             depth at) {
    int const steps = tile.steps_of_8();
    int const bytes = weight_bytes + Tile::panels * steps * 1024;
    memory_.stages.await_free(at_);
    shared_barrier& filled = memory_.stages.filled[at_.slot];
    cute::set_barrier_transaction_bytes(filled,
                                        static_cast<std::uint32_t>(bytes));  // narrow-ok: stage
    if (weight_bytes > 0) load_weights(tile, at, filled);
    // Each CTA of the cluster loads one half of the rows, for both.
    int const half = Tile::cluster == 1 ? steps : (steps + 1) / 2;
    int const first = rank_ == 0 ? 0 : half, count = rank_ == 0 ? half : steps - half;
#pragma unroll
    for (int panel = 0; panel < Tile::panels; ++panel) {
      std::uint8_t* const to =
          memory_.stage[at_.slot] + Tile::weight_bytes + panel * Tile::panel_bytes;
      load_rows(rows, tile.row, first, count, {at.k + panel * 64, at.part}, to);
    }
    at_.next();
  }
  __device__ void load_weights(gemm_tile const& tile, depth at, shared_barrier& filled) const {
    int const part = Tile::transposed ? at.part : tile.part;
    int const k = at.k * Tile::code_bits / 8;  // bytes
    cute::SM90_TMA_LOAD_3D::copy(&p_.weights[part], &filled, weights_hint_, memory_.stage[at_.slot],
                                 Tile::transposed ? tile.out : k, Tile::transposed ? k : tile.out,
                                 memory_.matrix[Tile::transposed ? at.part : 0]);
  }
  /// 8 * `count` rows of the tile from 8 * `done` on, in boxes of 128 rows down to 8. Rows past the
  /// end of the tile are loaded and multiplied, but never stored.
  __device__ void load_rows(tensor_map const* maps, int row, int done, int count, depth at,
                            std::uint8_t* to) const {
#pragma unroll
    for (int i = 4; i >= 0; --i) {
      if ((8 << i) > Tile::rows || (count >> i & 1) == 0) continue;
      load_box(maps[i], row + done * 8, at, to + done * 1024);
      done += 1 << i;
    }
  }
  __device__ void load_box(tensor_map const& map, int row, depth at, std::uint8_t* to) const {
    shared_barrier& filled = memory_.stages.filled[at_.slot];
    if constexpr (Tile::cluster == 1) {
      cute::SM90_TMA_LOAD_3D::copy(&map, &filled, keep_in_l2, to, at.k, at.part, row);
    } else {
      cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, &filled, both_ctas, keep_in_l2, to, at.k,
                                             at.part, row);
    }
  }

  sm90_mixed_parameters const& p_;
  mixed_memory<Tile>& memory_;
  int rank_;  ///< of this CTA in its cluster
  std::uint64_t weights_hint_;
  ring_place<Tile::stages> at_;
};

}  // namespace moe64::cuda
