#include "cuda/kernels/gather_quantize.hpp"

#include "cuda/eights.hpp"
#include "cuda/launch.hpp"
#include "cuda/quantizing.hpp"
#include "cuda/usual.hpp"

#include <algorithm>
#include <string>

namespace moe64::cuda {
namespace {

quantize_target target_of_rows(gather_args const& args) {
  return target_of({args.rows, args.row_scales, args.quantized});
}

gather_quantize_parameters parameters_of(gather_args const& args) {
  return {args.x, args.plan, args.weighted, target_of_rows(args)};
}

/// Launches the kernel for what is usual, where it can be had.
bool launch_usual(launcher& on, gather_args const& args) {
  auto const to = usual_target_of(target_of_rows(args), quantize_usual_width);
  auto const x = usual_rows_of(args.x);
  routing_plan const& plan = args.plan;
  if (!to || !x || args.weighted || plan.slot_to_row.stride[0] != 1) return false;
  index_t const threads = align_up(ceil_div(args.x.extent[1], 32), 32);
  if (threads > usual_row_threads || plan.tokens >> 32 != 0) return false;
  // Memory writes fewer rows at a time faster: shared memory that nobody uses keeps the blocks of a
  // multiprocessor to so many.
  index_t const blocks = std::max<index_t>(3072 / std::max<index_t>(plan.top_k, 1) / threads, 2);
  index_t const unused_shared_bytes = std::max<index_t>(on.shared_bytes() / blocks - 2048, 0);
  bool const adjacent = args.x.stride[0] == args.x.extent[1];
  gather_usual_parameters const p = {
      .x = *x,
      .to = *to,
      .slot_to_row = static_cast<std::int64_t const*>(plan.slot_to_row.data),
      .tokens = plan.tokens,
      .top_k = plan.top_k,
      .ahead_bytes = adjacent ? plan.tokens * args.x.extent[1] * 2 : 0};
  on.launch(gather_usual_kernel(args.x.type, to->in_groups),
            {on.blocks_for(plan.tokens, one_task_each), narrow<int>(threads), unused_shared_bytes},
            p);
  return true;
}

support takes_sixteens(gather_args const& args) {
  if (bits(args.x.type) != 16 || bits(args.rows.type) != 8) {
    return support::no("from " + std::string(name(args.x.type)) + " to " +
                       std::string(name(args.rows.type)) + ", not from 16 to 8 bits");
  }
  support const x = can_take_sixteens("x", args.x);
  return x ? can_take_sixteens("rows", args.rows) : x;
}

support is_quantizing(gather_args const& args) {
  if (args.quantized.kind != scale_kind::none) return support::yes();
  return support::no("rows are not quantised");
}

}  // namespace

support is_copy(gather_args const& args) {
  if (args.quantized.kind == scale_kind::none) return support::yes();
  return support::no("rows are quantised on the way");
}

support takes_quantized_groups(gather_args const& args) {
  if (support const answer = is_quantizing(args); !answer) return answer;
  support const answer = can_make_groups(target_of_rows(args));
  return answer ? takes_sixteens(args) : answer;
}

void run_quantized_groups(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  if (launch_usual(on, args)) return;
  gather_quantize_parameters const p = parameters_of(args);
  index_t const threads =
      std::clamp<index_t>(align_up(ceil_div(p.x.extent[1], gather_held), 32), 32, 1024);
  on.launch(gather_groups_kernel(p.x.type, p.target.values.type),
            {on.blocks_for(p.plan.tokens, one_task_each), narrow<int>(threads)}, p);
}

support takes_quantized_rows(gather_args const& args) {
  if (support const answer = is_quantizing(args); !answer) return answer;
  if (args.quantized.kind != scale_kind::row) return support::no("a row has several scales");
  support const answer = can_make_blocks(target_of_rows(args), {gather_held});
  return answer ? takes_sixteens(args) : answer;
}

void run_quantized_rows(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  if (launch_usual(on, args)) return;
  gather_quantize_parameters const p = parameters_of(args);
  index_t const threads = threads_of_block(p.target, {gather_held});
  on.launch(gather_rows_kernel(p.x.type, p.target.values.type),
            {on.blocks_for(p.plan.tokens, one_task_each), narrow<int>(threads)}, p);
}

void run_quantized_reference(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  on.launch(gather_quantize_reference_kernel(), {on.blocks_for(args.plan.slots(), 8), 256},
            parameters_of(args));
}

}  // namespace moe64::cuda
