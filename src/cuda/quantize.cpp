#include "cuda/kernels/quantize/quantize.hpp"

#include "cuda/operations.hpp"
#include "cuda/quantize/fp8_row_major.hpp"
#include "cuda/quantize/target.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/vec8.hpp"

namespace moe64::cuda {
namespace {

quantize_parameters parameters_of(quantize_args const& args) {
  return {
      .x = args.x.as_stack(),
      .target = target_of({args.values, args.scales, args.layout}, args.global, args.live_rows)};
}

void launch_globals(launcher& on, quantize_parameters const& p) {
  if (!p.target.global.present()) return;
  on.launch(quantize_globals_kernel(), {on.ctas_for(p.x.extent[0], 2), 1024}, p);
}

void run_reference(quantize_args const& args, stream where) {
  launcher on("quantize", args, where);
  quantize_parameters const p = parameters_of(args);
  launch_globals(on, p);
  constexpr int threads = 256;
  on.launch(quantize_scales_kernel(), {on.ctas_for(p.target.scales.size(), 8), threads}, p);
  index_t const tasks = ceil_div(p.x.size(), index_t{threads});
  on.launch(quantize_codes_kernel(), {on.ctas_for(tasks, 8), threads}, p);
}

support takes_vec16(quantize_args const& args) {
  support const x = can_take_vec16("x", args.x);
  return x ? can_take_vec16("values", args.values) : x;
}

support takes_row_major(quantize_args const& args) {
  quantize_target const target = parameters_of(args).target;
  if (support const to = can_be_row_major(target, quantize_row_major_width); !to) return to;
  if (target.block_cols != row_major_group) return support::no("a row has one scale");
  support const x = has_row_major_rows("x", args.x);
  return x ? takes_vec16(args) : x;
}

void run_row_major(quantize_args const& args, stream where) {
  launcher on("quantize", args, where);
  quantize_parameters const p = parameters_of(args);
  row_major_target const to = row_major_target_of(p.target, quantize_row_major_width);
  constexpr index_t tile = index_t{row_major_threads} * quantize_row_major_held;
  on.launch(quantize_row_major_kernel(p.x.type), {row_major_ctas(on, to, tile), row_major_threads},
            quantize_row_major_parameters{row_major_rows_of(p.x), to});
}

support takes_groups(quantize_args const& args) {
  support const answer = can_make_groups(parameters_of(args).target);
  return answer ? takes_vec16(args) : answer;
}

void run_groups(quantize_args const& args, stream where) {
  launcher on("quantize", args, where);
  quantize_parameters const p = parameters_of(args);
  launch_globals(on, p);
  on.launch(quantize_groups_kernel(p.x.type, p.target.values.type),
            {on.ctas_for(tiles_of_groups(p.target), one_task_each), groups_threads}, p);
}

support takes_blocks(quantize_args const& args) {
  support const answer = can_make_blocks(parameters_of(args).target, {quantize_held(args.x.type)});
  return answer ? takes_vec16(args) : answer;
}

void run_blocks(quantize_args const& args, stream where) {
  launcher on("quantize", args, where);
  quantize_parameters const p = parameters_of(args);
  index_t const threads = threads_of_block(p.target, {quantize_held(p.x.type)});
  on.launch(quantize_blocks_kernel(p.x.type, p.target.values.type),
            {on.ctas_for(p.target.scales.size(), one_task_each), narrow<int>(threads)}, p);
}

constexpr implementation<quantize_args> quantizers[] = {
    {"fp8_row_major", takes_row_major, run_row_major},
    {"groups", takes_groups, run_groups},
    {"blocks", takes_blocks, run_blocks},
    {"reference", any_call<quantize_args>, run_reference},
};

}  // namespace

implementation_list<quantize_args> quantize_list() { return quantizers; }

}  // namespace moe64::cuda
