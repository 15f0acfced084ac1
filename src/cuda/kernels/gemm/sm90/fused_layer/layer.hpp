#pragma once

#include "cuda/kernels/gemm/sm90/gemm.hpp"
#include "cuda/kernels/plan/small_batch_sort.hpp"

/// Both products of a layer of few slots, the activation between them and the combination behind
/// them in one launch, for sm_90a.
namespace moe64::cuda {

/// Words of 32 bits that blocks count in, zeros when the kernel begins: the next tile, tiles of
/// gate_up whose weights are all asked for, then for each unit (rows that are multiplied together)
/// tiles written of each 128 columns of the activation and how many of these have codes, then units
/// that each 128 outputs have.
struct layer_counters {
  int units;   ///< at most
  int groups;  ///< of 128 columns of the activation
  int outs;    ///< of 128 outputs

  [[nodiscard]] static constexpr int asked() { return 1; }
  [[nodiscard]] constexpr int arrivals(int unit, int group) const {
    return 2 + unit * (groups + 1) + group;
  }
  [[nodiscard]] constexpr int ready(int unit) const { return arrivals(unit, groups); }
  [[nodiscard]] constexpr int done(int out) const { return arrivals(units, 0) + out; }
  [[nodiscard]] constexpr int words() const { return done(outs); }
};

struct sm90_fused_layer_parameters {
  sm90_gemm_parameters product[2];  ///< gate_up and down
  activate_row_major_parameters activate;
  plan_rounds_parameters plan;
  tensor_view rows, y;  ///< [capacity, hidden] and [tokens, hidden] of one type, in eights
  bool weighted;
  layer_counters at;
  std::uint32_t* counters;
};

/// Rows of a unit: at most 8, or at most 16.
enum class layer_rows { eight, sixteen };
inline constexpr index_t most_layer_rows = 16;

struct fused_layer_config {
  int threads;
  index_t shared_bytes;
};
[[nodiscard]] fused_layer_config sm90_fused_layer_config(layer_rows rows);
/// `type`: of everything but codes, bf16 f16. It follows plan_gather_kernel, which sets the
/// counters.
[[nodiscard]] kernel<sm90_fused_layer_parameters> sm90_fused_layer_kernel(layer_rows rows,
                                                                          dtype type);

}  // namespace moe64::cuda
