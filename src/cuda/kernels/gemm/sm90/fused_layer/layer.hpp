#pragma once

#include "cuda/kernels/activate/fp8_row_major.hpp"
#include "cuda/kernels/gemm/sm90/gemm.hpp"
#include "cuda/kernels/plan/small_batch_sort.hpp"

/// Both GEMMs of a W8A8 layer of few slots, the activation between them and the combination behind
/// them in one launch, for sm_90a.
namespace moe64::cuda {

/// Words of 32 bits in global memory that CTAs count in, zeros when the kernel begins: the work
/// counter; tiles of gate_up whose weights are all requested; then for each row tile the tiles of
/// gate_up written of each scale group of the activation, and how many of these groups are
/// quantised; then the row tiles that each 128 outputs of down have.
struct layer_counters {
  int row_tiles;  ///< at most
  int groups;     ///< scale groups of a row of the activation
  int outs;       ///< of 128 outputs of down

  [[nodiscard]] static constexpr int work() { return 0; }
  [[nodiscard]] static constexpr int requested() { return 1; }
  [[nodiscard]] constexpr int written(int row_tile, int group) const {
    return 2 + row_tile * (groups + 1) + group;
  }
  [[nodiscard]] constexpr int quantized(int row_tile) const { return written(row_tile, groups); }
  [[nodiscard]] constexpr int done(int out) const { return written(row_tiles, 0) + out; }
  [[nodiscard]] constexpr int words() const { return done(outs); }
};

struct sm90_fused_layer_parameters {
  sm90_gemm_parameters gemm[2];  ///< gate_up and down
  activate_row_major_parameters activate;
  plan_rounds_parameters plan;
  tensor_view rows, y;  ///< [capacity, hidden] and [tokens, hidden] bf16 f16, rows of whole vec8
  bool weighted;
  layer_counters index;
  std::uint32_t* counters;
};

/// Rows of an expert that a tile has at most.
inline constexpr index_t most_layer_rows = 16;

struct fused_layer_kernel {
  kernel<sm90_fused_layer_parameters> run;
  int threads;  ///< of a CTA
  index_t shared_bytes;
};
/// `tile`: m8n128 or m16n128. `type`: of everything but codes, bf16 f16. It follows
/// plan_gather_kernel, which zeroes the counters.
[[nodiscard]] fused_layer_kernel sm90_fused_layer_kernel(tile_shape tile, dtype type);

}  // namespace moe64::cuda
