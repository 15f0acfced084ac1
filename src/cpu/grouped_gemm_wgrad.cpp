#include "cpu/gemm/bf16/grouped_gemm_bf16.hpp"
#include "cpu/gemm/reference/tile.hpp"
#include "cpu/operations.hpp"
#include "cpu/runtime/expert_ranges.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"
#include "cpu/simd/widths.hpp"

#include <algorithm>

namespace moe64::cpu {

MOE64_DECLARE_WIDTHS(grouped_gemm_wgrad_args, grouped_gemm_wgrad_simd)

namespace {

/// Rows [out_begin, out_begin + outs) of one part of one expert's weight gradient. Rows of x are
/// added in order.
void compute_gradient(grouped_gemm_wgrad_args const& args, std::size_t part, tile_place const& at) {
  tensor_view const& d_weights = args.d_weights[part];
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const dy_begin = static_cast<index_t>(part) * part_rows + at.out_begin;
  float left[out_tile] = {};
  for (index_t begin = 0; begin < args.x.extent[1]; begin += depth_tile) {
    index_t const depth = std::min(depth_tile, args.x.extent[1] - begin);
    alignas(64) weight_tile acc = {};
    alignas(64) f32_lanes right[lane_steps];
    for (index_t r = at.row_begin; r < at.row_begin + at.rows; ++r) {
      load_row(row_of(args.dy, r), dy_begin, at.outs, left);
      auto* const run = reinterpret_cast<float*>(right);
      load_row(row_of(args.x, r), begin, depth, run);
      accumulate_outer(acc, left, right, pad_to_lanes(run, depth));
    }
    for (index_t n = 0; n < at.outs; ++n) {
      auto* const run = reinterpret_cast<float*>(acc.values[n]);
      // Without rows the sum is +0, whatever the sign of the factor.
      for (index_t k = 0; at.rows > 0 && k < depth; ++k) run[k] *= args.scaling;
      store_row(row_of(d_weights, at.expert, at.out_begin + n), begin, depth, run);
    }
  }
}

void compute_bias_gradient(grouped_gemm_wgrad_args const& args, std::size_t part,
                           tile_place const& at) {
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const dy_begin = static_cast<index_t>(part) * part_rows + at.out_begin;
  float sum[out_tile] = {};
  float run[out_tile];
  for (index_t r = at.row_begin; r < at.row_begin + at.rows; ++r) {
    load_row(row_of(args.dy, r), dy_begin, at.outs, run);
    for (index_t n = 0; n < at.outs; ++n) sum[n] += run[n];
  }
  store_row(row_of(args.d_bias[part], at.expert), at.out_begin, at.outs, sum);
}

void grouped_gemm_wgrad_reference(grouped_gemm_wgrad_args const& args, stream where) {
  ranges const begin = checked_ranges("grouped_gemm_wgrad", args.expert_begin, args.dy.extent[0]);
  index_t const experts = args.expert_begin.extent[0] - 1;
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const tiles = ceil_div(part_rows, out_tile);
  index_t const tasks = experts * args.parts * tiles;
  parallel_for(where, tasks, [&](index_t task) {
    index_t const expert = task / (args.parts * tiles);
    auto const part = static_cast<std::size_t>(task / tiles % args.parts);
    index_t const out_begin = task % tiles * out_tile;
    tile_place const at = {expert, begin(expert), begin(expert + 1) - begin(expert), out_begin,
                           std::min(out_tile, part_rows - out_begin)};
    if (args.d_weights[part].present()) compute_gradient(args, part, at);
    if (args.d_bias[part].present()) compute_bias_gradient(args, part, at);
  });
}

constexpr implementation<grouped_gemm_wgrad_args> gradients[] = {
#if defined(__x86_64__)
    {"amx_bf16", where<has_amx_bf16, grouped_gemm_wgrad_args, bf16::takes_gradient>,
     amx::grouped_gemm_wgrad},
    {"avx512_bf16", where<has_avx512_bf16, grouped_gemm_wgrad_args, bf16::takes_gradient>,
     bf16::grouped_gemm_wgrad},
#endif
    MOE64_WIDTHS(grouped_gemm_wgrad_args, grouped_gemm_wgrad_simd,
                 any_call<grouped_gemm_wgrad_args>),
    {"reference", any_call<grouped_gemm_wgrad_args>, grouped_gemm_wgrad_reference},
};

}  // namespace

implementation_list<grouped_gemm_wgrad_args> grouped_gemm_wgrad_list() { return gradients; }

}  // namespace moe64::cpu
