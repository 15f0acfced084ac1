#include "cuda/gemm/parameters.hpp"
#include "cuda/gemm/sm80/gemm.hpp"
#include "cuda/operations.hpp"
#include "cuda/runtime/launch.hpp"

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

index_t gradient_tasks(grouped_gemm_wgrad_args const& args, index_t row_tile, index_t col_tile) {
  index_t const matrices = checked_mul(args.expert_begin.extent[0] - 1, args.parts);
  index_t const row_tiles = ceil_div(args.dy.extent[1] / args.parts, row_tile);
  return checked_mul(matrices, checked_mul(row_tiles, ceil_div(args.x.extent[1], col_tile)));
}

namespace {

bool asks_for_weights(grouped_gemm_wgrad_args const& args) {
  return args.d_weights[0].present() || args.d_weights[1].present();
}

void launch_bias(launcher& on, grouped_gemm_wgrad_args const& args) {
  if (!args.d_bias[0].present() && !args.d_bias[1].present()) return;
  index_t const experts = args.expert_begin.extent[0] - 1;
  index_t const bias_tasks = checked_mul(
      experts, args.parts * ceil_div(args.dy.extent[1] / args.parts, bias_gradient_threads));
  on.launch(grouped_gemm_bias_gradient_kernel(),
            {on.ctas_for(bias_tasks, 16), bias_gradient_threads}, parameters_of(args));
}

void run_reference(grouped_gemm_wgrad_args const& args, stream where) {
  launcher on("grouped_gemm_wgrad", args, where);
  if (asks_for_weights(args)) {
    constexpr index_t tile = gemm_reference_tile;
    on.launch(grouped_gemm_wgrad_reference_kernel(),
              {on.ctas_for(gradient_tasks(args, tile, tile), 8), tile * tile}, parameters_of(args));
  }
  launch_bias(on, args);
}

void run_mma(grouped_gemm_wgrad_args const& args, stream where) {
  launcher on("grouped_gemm_wgrad", args, where);
  if (asks_for_weights(args)) sm80::launch_gradient(on, args);
  launch_bias(on, args);
}

constexpr implementation<grouped_gemm_wgrad_args> gradients[] = {
    {"sm80_mma", sm80::takes_gradient, run_mma},
    {"reference", any_call<grouped_gemm_wgrad_args>, run_reference},
};

}  // namespace

implementation_list<grouped_gemm_wgrad_args> grouped_gemm_wgrad_list() { return gradients; }

}  // namespace moe64::cuda
