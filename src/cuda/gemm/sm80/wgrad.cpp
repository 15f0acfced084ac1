#include "cuda/gemm/parameters.hpp"
#include "cuda/gemm/sm80/gemm.hpp"
#include "cuda/gemm/sm80/heuristics.hpp"

#include <fmt/format.h>

namespace moe64::cuda::sm80 {

support takes_gradient(grouped_gemm_wgrad_args const& args) {
  if (!args.x.present()) return support::yes();  // only the bias is asked for
  if (support const rows = takes_rows("dy", args.dy); !rows) return rows;
  if (support const rows = takes_rows("x", args.x); !rows) return rows;
  if (args.dy.type != args.x.type) {
    return support::no(fmt::format("dy is {}, x is {}", name(args.dy.type), name(args.x.type)));
  }
  index_t const part_rows = args.dy.extent[1] / args.parts;
  if (args.parts == 2 && part_rows % 8 != 0) {
    return support::no(fmt::format(
        "the second half of dy begins at column {}, not at a multiple of 8", part_rows));
  }
  return support::yes();
}

void launch_gradient(launcher& on, grouped_gemm_wgrad_args const& args) {
  index_t const part_rows = args.dy.extent[1] / args.parts;
  gemm_extents const call = {part_rows, args.dy.extent[0], args.x.extent[1]};
  mma_tile const tile = choose_tile(on, wgrad_tiles(), call, false);
  mma_tile_config const& config = config_of(tile);
  index_t const tasks = gradient_tasks(args, config.rows, config.outs);
  on.launch(sm80_wgrad_kernel(tile, args.x.type == dtype::bf16),
            {on.ctas_for(tasks, config.ctas_per_sm), config.threads(), config.shared_bytes(false)},
            parameters_of(args));
}

}  // namespace moe64::cuda::sm80
