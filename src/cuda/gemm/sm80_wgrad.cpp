#include "cuda/gemm/parameters.hpp"
#include "cuda/gemm/sm80_gemm.hpp"

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
  bool const thin = args.x.extent[1] <= mma_thin_outs;
  mma_size const wanted = part_rows <= 64 ? mma_size::some : thin ? mma_size::thin : mma_size::many;
  mma_size const size = size_that_fits(on, wanted, codes_kind::none);
  mma_shape const shape = grouped_gemm_mma_shape(size, codes_kind::none);
  index_t const tasks = gradient_tasks(args, shape.rows, shape.outs);
  on.launch(grouped_gemm_wgrad_mma_kernel(size, args.x.type == dtype::bf16),
            {on.ctas_for(tasks, shape.blocks_each), shape.threads, shape.shared_bytes},
            parameters_of(args));
}

}  // namespace moe64::cuda::sm80
