#include "cuda/kernels/permute/gather_quantize.hpp"

#include "cuda/kernels/permute/gather_fp8_row_major.hpp"
#include "cuda/quantize/fp8_row_major.hpp"
#include "cuda/quantize/fused_quantize.hpp"
#include "cuda/quantize/target.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/vec8.hpp"

#include <fmt/format.h>

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

/// CTAs that an SM should hold, and their threads.
struct occupancy {
  index_t ctas_per_sm, threads;
};
/// DRAM writes fewer rows at a time faster: unused shared memory limits the CTAs of an
/// SM.
grid grid_of(launcher const& on, occupancy const& wanted, index_t tasks) {
  index_t const unused_shared_bytes =
      std::max<index_t>(on.shared_bytes() / wanted.ctas_per_sm - 2048, 0);
  return {on.ctas_for(tasks, one_task_each), narrow<int>(wanted.threads), unused_shared_bytes};
}

/// Threads that hold a row with one scale, 32 columns each.
index_t threads_of_row(index_t cols) { return align_up(ceil_div(cols, 32), 32); }

support takes_vec16(gather_args const& args) {
  if (bits(args.x.type) != 16 || bits(args.rows.type) != 8) {
    return support::no("from " + std::string(name(args.x.type)) + " to " +
                       std::string(name(args.rows.type)) + ", not from 16 to 8 bits");
  }
  support const x = can_take_vec16("x", args.x);
  return x ? can_take_vec16("rows", args.rows) : x;
}

support is_quantizing(gather_args const& args) {
  if (args.quantized.kind != scale_kind::none) return support::yes();
  return support::no("rows are not quantised");
}

}  // namespace

support is_copy(gather_args const& args) {
  if (args.quantized.kind == scale_kind::none) return support::yes();
  return support::no("rows are quantised");
}

support takes_quantized_groups(gather_args const& args) {
  if (support const answer = is_quantizing(args); !answer) return answer;
  support const answer = can_make_groups(target_of_rows(args));
  return answer ? takes_vec16(args) : answer;
}

void run_quantized_groups(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  gather_quantize_parameters const p = parameters_of(args);
  index_t const threads =
      std::clamp<index_t>(align_up(ceil_div(p.x.extent[1], gather_held), 32), 32, 1024);
  on.launch(gather_groups_kernel(p.x.type, p.target.values.type),
            {on.ctas_for(p.plan.tokens, one_task_each), narrow<int>(threads)}, p);
}

support takes_quantized_rows(gather_args const& args) {
  if (support const answer = is_quantizing(args); !answer) return answer;
  if (args.quantized.kind != scale_kind::row) return support::no("a row has several scales");
  support const answer = can_make_blocks(target_of_rows(args), {gather_held});
  return answer ? takes_vec16(args) : answer;
}

void run_quantized_rows(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  gather_quantize_parameters const p = parameters_of(args);
  index_t const threads = threads_of_block(p.target, {gather_held});
  on.launch(gather_rows_kernel(p.x.type, p.target.values.type),
            {on.ctas_for(p.plan.tokens, one_task_each), narrow<int>(threads)}, p);
}

support takes_row_major(gather_args const& args) {
  bool const groups = bool(takes_quantized_groups(args));
  if (support const rows = takes_quantized_rows(args); !groups && !rows) return rows;
  quantize_target const target = target_of_rows(args);
  if (support const to = can_be_row_major(target, quantize_row_major_width); !to) return to;
  if (support const x = has_row_major_rows("x", args.x); !x) return x;
  routing_plan const& plan = args.plan;
  if (args.weighted) return support::no("rows are weighted");
  if (plan.slot_to_row.stride[0] != 1) return support::no("slot_to_row has gaps");
  row_major_target const to = row_major_target_of(target, quantize_row_major_width);
  if (plan.tokens >= row_major_most_items / to.row_items.by) {
    return support::no(fmt::format("{} tokens of {} columns: it counts them by 16 with 31 bits",
                                   plan.tokens, to.cols));
  }
  if (to.in_groups || threads_of_row(to.cols) <= row_major_row_threads) return support::yes();
  return support::no(fmt::format("rows of {} columns with one scale: it takes at most {}", to.cols,
                                 32 * row_major_row_threads));
}

void run_row_major(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  row_major_target const to = row_major_target_of(target_of_rows(args), quantize_row_major_width);
  routing_plan const& plan = args.plan;
  index_t const row_items = to.row_items.by, top_k = std::max<index_t>(plan.top_k, 1);
  // l2_prefetch needs x contiguous, and every thread to have a part of it.
  index_t const cols = args.x.extent[1];
  bool const contiguous =
      args.x.stride[0] == cols && (!to.in_groups || cols % row_major_group == 0);
  gather_row_major_parameters const p = {
      .x = row_major_rows_of(args.x),
      .to = to,
      .slot_to_row = static_cast<std::int64_t const*>(plan.slot_to_row.data),
      .tokens = plan.tokens,
      .top_k = plan.top_k,
      .prefetch_bytes = contiguous ? plan.tokens * cols * 2 : 0};
  if (to.in_groups) {
    constexpr index_t threads = gather_groups_threads;
    occupancy const wanted = {std::clamp<index_t>(32 / top_k, 2, 16), threads};
    on.launch(gather_row_major_groups_kernel(args.x.type),
              grid_of(on, wanted, ceil_div(plan.tokens * row_items, threads)), p);
    return;
  }
  index_t const threads = threads_of_row(cols);
  occupancy const wanted = {std::max<index_t>((2688 / top_k + threads / 2) / threads, 2), threads};
  on.launch(gather_row_major_rows_kernel(args.x.type), grid_of(on, wanted, plan.tokens), p);
}

void run_quantized_reference(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  on.launch(gather_quantize_reference_kernel(), {on.ctas_for(args.plan.slots(), 8), 256},
            parameters_of(args));
}

}  // namespace moe64::cuda
