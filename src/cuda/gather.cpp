#include "cuda/kernels/gather.hpp"

#include "cuda/launch.hpp"
#include "cuda/operations.hpp"
#include "cuda/quantizing.hpp"

namespace moe64::cuda {
namespace {

gather_parameters parameters_of(gather_args const& args) {
  return {args.x, args.scales, args.rows, args.row_scales, args.plan, args.weighted};
}

void run_reference(gather_args const& args, stream where) {
  if (args.quantized.kind != scale_kind::none) return run_quantized_reference(args, where);
  launcher on("gather", args, where);
  on.launch(gather_reference_kernel(), {on.blocks_for(args.plan.slots(), 8), 256},
            parameters_of(args));
}

constexpr implementation<gather_args> gatherers[] = {
    {"quantized_groups", takes_quantized_groups, run_quantized_groups},
    {"quantized_rows", takes_quantized_rows, run_quantized_rows},
    {"reference", any_call<gather_args>, run_reference},
};

}  // namespace

implementation_list<gather_args> gather_list() { return gatherers; }

}  // namespace moe64::cuda
