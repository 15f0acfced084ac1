#include "cuda/kernels/activate/activate_quantize.hpp"

#include "cuda/fp8_row_major.hpp"
#include "cuda/fused_quantize.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/vec8.hpp"

#include <algorithm>
#include <string>

namespace moe64::cuda {
namespace {

constexpr team row_team = {activate_held, activate_rows_threads};

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

std::optional<activate_row_major_parameters> row_major_parameters_of(activate_args const& args) {
  auto const to = row_major_target_of(target_of_out(args), activate_row_major_width);
  auto const gate = row_major_rows_of(args.gate);
  auto const up = args.up.present() ? row_major_rows_of(args.up) : row_major_rows{};
  if (!to || !gate || !up) return std::nullopt;
  return activate_row_major_parameters{args.activation, *gate, *up, *to};
}

/// Blocks that stay with teams of so many threads, as many as there is shared memory for; none
/// where a team is too large.
grid staying_grid(launcher const& on, activation kind, index_t team_threads) {
  index_t const room = on.shared_bytes() - gate_table_bytes - 1024;
  index_t const most = std::min<index_t>(staying_threads, room / staying_item_bytes(kind));
  index_t const threads = most / team_threads * team_threads;
  return {threads > 0 ? on.multiprocessors() : 0, narrow<int>(threads),
          gate_table_bytes + threads * staying_item_bytes(kind)};
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
  activation const kind = args.activation.kind;
  auto const usual = row_major_parameters_of(args);
  if (usual && usual->to.in_groups && takes_table(kind, args.gate.type, args.gate.size())) {
    if (grid const shape = staying_grid(on, kind, 32); shape.blocks > 0) {
      on.launch(activate_row_major_table_kernel(kind), shape, *usual);
      return;
    }
  }
  if (usual && usual->to.in_groups) {
    on.launch(activate_row_major_kernel(kind, args.gate.type),
              {row_major_blocks(on, usual->to, row_major_threads), row_major_threads}, *usual);
    return;
  }
  activate_quantize_parameters const p = parameters_of(args);
  on.launch(activate_groups_kernel(kind, args.gate.type),
            {on.blocks_for(tiles_of_groups(p.target), one_task_each), groups_threads}, p);
}

support takes_quantized_rows(activate_args const& args) {
  if (support const answer = is_quantizing(args); !answer) return answer;
  if (args.quantized.kind != scale_kind::row) return support::no("a row has several scales");
  support const answer = can_make_blocks(target_of_out(args), row_team);
  return answer ? takes_vec16(args) : answer;
}

void run_quantized_rows(activate_args const& args, stream where) {
  launcher on("activate", args, where);
  activation const kind = args.activation.kind;
  auto const usual = row_major_parameters_of(args);
  if (usual && takes_table(kind, args.gate.type, args.gate.size())) {
    index_t const row_threads = align_up(usual->to.row_items.by, 32);
    if (grid const shape = staying_grid(on, kind, row_threads); shape.blocks > 0) {
      on.launch(activate_row_major_table_rows_kernel(kind), shape, *usual);
      return;
    }
  }
  if (usual && row_major_team_of(usual->to).threads <= row_major_row_threads) {
    auto const [threads, rows] = row_major_team_of(usual->to);
    on.launch(
        activate_row_major_rows_kernel(kind, args.gate.type),
        {on.blocks_for(ceil_div(args.gate.extent[0], rows), one_task_each), narrow<int>(threads)},
        *usual);
    return;
  }
  activate_quantize_parameters const p = parameters_of(args);
  index_t const threads = threads_of_block(p.target, row_team);
  on.launch(activate_rows_kernel(kind, args.gate.type),
            {on.blocks_for(p.gate.extent[0], one_task_each), narrow<int>(threads)}, p);
}

void run_quantized_reference(activate_args const& args, stream where) {
  launcher on("activate", args, where);
  on.launch(activate_quantize_reference_kernel(args.activation.kind),
            {on.blocks_for(args.gate.extent[0], 8), 256}, parameters_of(args));
}

}  // namespace moe64::cuda
