#include "cuda/kernels/gather.hpp"

#include "cuda/launch.hpp"
#include "cuda/operations.hpp"

namespace moe64::cuda {
namespace {

gather_parameters parameters_of(gather_args const& args) {
  return {args.x, args.scales, args.rows, args.row_scales, args.plan, args.weighted};
}

void run_reference(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  on.launch(gather_reference_kernel(), {on.blocks_for(args.plan.slots(), 8), 256},
            parameters_of(args));
}

constexpr implementation<gather_args> gatherers[] = {
    {"reference", any_call<gather_args>, run_reference},
};

}  // namespace

implementation_list<gather_args> gather_list() { return gatherers; }

}  // namespace moe64::cuda
