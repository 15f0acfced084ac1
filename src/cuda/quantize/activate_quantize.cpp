#include "cuda/kernels/activate/activate_quantize.hpp"

#include "cuda/kernels/activate/fp8_row_major.hpp"
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

constexpr cta_capacity row_threads = {activate_held, activate_rows_threads};

quantize_target target_of_out(activate_args const& args) {
  return target_of({args.out, args.scales, args.quantized}, {}, args.live_rows);
}

activate_quantize_parameters parameters_of(activate_args const& args) {
  return {args.activation, args.gate, args.up, target_of_out(args)};
}

support takes_vec16(activate_args const& args) {
  if (bits(args.gate.type) != 16 || args.out.type != dtype::e4m3) {
    return support::no("from " + std::string(name(args.gate.type)) + " to " +
                       std::string(name(args.out.type)) + ", not from bf16 or f16 to e4m3");
  }
  for (auto const& [label, tensor] :
       {std::pair{"gate", &args.gate}, std::pair{"up", &args.up}, std::pair{"out", &args.out}}) {
    if (!tensor->present()) continue;
    if (support const answer = can_take_vec16(label, *tensor); !answer) return answer;
  }
  return support::yes();
}

activate_row_major_parameters row_major_parameters_of(activate_args const& args) {
  return {args.activation, row_major_rows_of(args.gate),
          args.up.present() ? row_major_rows_of(args.up) : row_major_rows{},
          row_major_target_of(target_of_out(args), activate_row_major_width)};
}

/// Threads of a persistent CTA that take items together: those of a group, or of a row.
index_t table_team(quantize_target const& target) {
  bool const groups = target.block_cols == row_major_group;
  return groups ? 32 : align_up(target.row_vec16s.by / activate_row_major_width, 32);
}

/// As many teams of so many threads as there is shared memory for; 0: not for one.
index_t persistent_threads(activation kind, index_t team_threads, index_t shared_bytes) {
  index_t const room = shared_bytes - gate_table_bytes - 1024;
  index_t const most =
      std::min<index_t>(persistent_most_threads, room / persistent_item_bytes(kind));
  return most / team_threads * team_threads;
}

support is_quantizing(activate_args const& args) {
  if (args.quantized.kind != scale_kind::none) return support::yes();
  return support::no("the result is not quantised");
}

}  // namespace

support takes_quantized_groups(activate_args const& args) {
  if (support const answer = is_quantizing(args); !answer) return answer;
  support const answer = can_make_groups(target_of_out(args));
  return answer ? takes_vec16(args) : answer;
}

void run_quantized_groups(activate_args const& args, stream where) {
  launcher on("activate", args, where);
  activate_quantize_parameters const p = parameters_of(args);
  on.launch(activate_groups_kernel(args.activation.kind, args.gate.type),
            {on.ctas_for(tiles_of_groups(p.target), one_task_each), groups_threads}, p);
}

support takes_quantized_rows(activate_args const& args) {
  if (support const answer = is_quantizing(args); !answer) return answer;
  if (args.quantized.kind != scale_kind::row) return support::no("a row has several scales");
  support const answer = can_make_blocks(target_of_out(args), row_threads);
  return answer ? takes_vec16(args) : answer;
}

void run_quantized_rows(activate_args const& args, stream where) {
  launcher on("activate", args, where);
  activate_quantize_parameters const p = parameters_of(args);
  index_t const threads = threads_of_block(p.target, row_threads);
  on.launch(activate_rows_kernel(args.activation.kind, args.gate.type),
            {on.ctas_for(p.gate.extent[0], one_task_each), narrow<int>(threads)}, p);
}

namespace {

support takes_row_major_operands(activate_args const& args) {
  bool const groups = bool(takes_quantized_groups(args));
  if (support const rows = takes_quantized_rows(args); !groups && !rows) return rows;
  quantize_target const target = target_of_out(args);
  if (support const to = can_be_row_major(target, activate_row_major_width); !to) return to;
  if (support const gate = has_row_major_rows("gate", args.gate); !gate) return gate;
  return args.up.present() ? has_row_major_rows("up", args.up) : support::yes();
}

}  // namespace

support takes_row_major(activate_args const& args) {
  if (support const operands = takes_row_major_operands(args); !operands) return operands;
  quantize_target const target = target_of_out(args);
  if (target.block_cols == row_major_group) return support::yes();
  row_major_target const to = row_major_target_of(target, activate_row_major_width);
  if (row_major_cta_of(to).threads <= row_major_row_threads) return support::yes();
  return support::no(fmt::format("rows of {} columns with one scale: it takes at most {}", to.cols,
                                 16 * activate_row_major_width * row_major_row_threads));
}

void run_row_major(activate_args const& args, stream where) {
  launcher on("activate", args, where);
  activation const kind = args.activation.kind;
  activate_row_major_parameters const p = row_major_parameters_of(args);
  if (p.to.in_groups) {
    on.launch(activate_row_major_kernel(kind, args.gate.type),
              {row_major_ctas(on, p.to, row_major_threads), row_major_threads}, p);
    return;
  }
  auto const [threads, rows] = row_major_cta_of(p.to);
  on.launch(activate_row_major_rows_kernel(kind, args.gate.type),
            {on.ctas_for(ceil_div(args.gate.extent[0], rows), one_task_each), narrow<int>(threads)},
            p);
}

support takes_row_major_table(activate_args const& args) {
  if (support const table = pays_table(args); !table) return table;
  if (support const operands = takes_row_major_operands(args); !operands) return operands;
  int shared_bytes = 0;
  if (the_runtime().shared_bytes(args.out.device.ordinal, &shared_bytes) != 0) {
    (void)the_runtime().take_error();  // or the next launch would report it as its own
    return support::no(to_string(args.out.device) + " does not tell its shared memory");
  }
  index_t const team = table_team(target_of_out(args));
  if (persistent_threads(args.activation.kind, team, shared_bytes) > 0) return support::yes();
  return support::no(
      fmt::format("{} bytes of shared memory and {} threads: no room for {}, which "
                  "one row needs",
                  shared_bytes, persistent_most_threads, team));
}

void run_row_major_table(activate_args const& args, stream where) {
  launcher on("activate", args, where);
  activation const kind = args.activation.kind;
  activate_row_major_parameters const p = row_major_parameters_of(args);
  index_t const threads =
      persistent_threads(kind, table_team(target_of_out(args)), on.shared_bytes());
  on.launch(p.to.in_groups ? activate_row_major_table_kernel(kind)
                           : activate_row_major_table_rows_kernel(kind),
            {on.multiprocessors(), narrow<int>(threads),
             gate_table_bytes + threads * persistent_item_bytes(kind)},
            p);
}

support pays_table(activate_args const& args) {
  if (takes_table(args.activation.kind, args.gate.type, args.gate.size())) return support::yes();
  return support::no(
      fmt::format("a table of gates is for gelu of bf16 and at least 2^22 elements, "
                  "not for {} of {} {}",
                  name(args.activation.kind), args.gate.size(), name(args.gate.type)));
}

void run_quantized_reference(activate_args const& args, stream where) {
  launcher on("activate", args, where);
  on.launch(activate_quantize_reference_kernel(args.activation.kind),
            {on.ctas_for(args.gate.extent[0], 8), 256}, parameters_of(args));
}

}  // namespace moe64::cuda
