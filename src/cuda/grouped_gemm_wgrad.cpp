#include "cuda/grouped_gemm.hpp"
#include "cuda/launch.hpp"
#include "cuda/operations.hpp"

namespace moe64::cuda {

grouped_gemm_wgrad_parameters parameters_of(grouped_gemm_wgrad_args const& args) {
  return {.dy = args.dy,
          .x = args.x,
          .expert_begin = args.expert_begin,
          .d_weights = {args.d_weights[0], args.d_weights[1]},
          .d_bias = {args.d_bias[0], args.d_bias[1]},
          .parts = args.parts,
          .scaling = args.scaling};
}

namespace {

/// Tasks of `rows` x `cols` outputs each, over all experts and parts.
index_t tasks_of(grouped_gemm_wgrad_args const& args, index_t rows, index_t out_cols,
                 index_t cols) {
  index_t const matrices = (args.expert_begin.extent[0] - 1) * args.parts;
  index_t const row_tiles = ceil_div(args.dy.extent[1] / args.parts, rows);
  return checked_mul(matrices, checked_mul(row_tiles, ceil_div(out_cols, cols)));
}

void launch_bias(launcher& on, grouped_gemm_wgrad_args const& args) {
  if (!args.d_bias[0].present() && !args.d_bias[1].present()) return;
  on.launch(grouped_gemm_bias_gradient_kernel(),
            {on.blocks_for(tasks_of(args, bias_gradient_threads, 1, 1), 16), bias_gradient_threads},
            parameters_of(args));
}

void run_reference(grouped_gemm_wgrad_args const& args, stream where) {
  launcher on("grouped_gemm_wgrad", args, where);
  if (args.d_weights[0].present() || args.d_weights[1].present()) {
    constexpr index_t tile = gemm_reference_tile;
    on.launch(grouped_gemm_wgrad_reference_kernel(),
              {on.blocks_for(tasks_of(args, tile, args.x.extent[1], tile), 8), tile * tile},
              parameters_of(args));
  }
  launch_bias(on, args);
}

constexpr implementation<grouped_gemm_wgrad_args> gradients[] = {
    {"reference", any_call<grouped_gemm_wgrad_args>, run_reference},
};

}  // namespace

implementation_list<grouped_gemm_wgrad_args> grouped_gemm_wgrad_list() { return gradients; }

}  // namespace moe64::cuda
