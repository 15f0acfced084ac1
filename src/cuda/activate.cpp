#include "cuda/kernels/activate/activate.hpp"

#include "cuda/operations.hpp"
#include "cuda/quantize/fused_quantize.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/vec8.hpp"

#include <initializer_list>
#include <string>
#include <utility>

namespace moe64::cuda {
namespace {

activate_parameters parameters_of(activate_args const& args) {
  return {args.activation, args.gate, args.up,
          args.live_rows,  args.out,  divide_by(args.gate.extent[1] / 8)};
}

activate_backward_parameters parameters_of(activate_backward_args const& args) {
  return {.spec = args.activation,
          .gate = args.gate,
          .up = args.up,
          .d_out = args.d_out,
          .row_to_slot = args.weighted_by.row_to_slot,
          .slot_weight = args.weighted_by.slot_weight,
          .live_rows = args.live_rows,
          .d_gate = args.d_gate,
          .d_up = args.d_up,
          .row_vec8s = divide_by(args.gate.extent[1] / 8)};
}

/// CTAs of the reference kernels, before the limit per SM.
index_t reference_tasks(tensor_view const& gate) {
  return gate.extent[0] * ceil_div(gate.extent[1], index_t{activate_threads});
}

index_t ctas_for_vec8s(launcher const& on, index_t vec8s) {
  return on.ctas_for(ceil_div(vec8s, index_t{activate_threads}), one_task_each);
}

/// Whether all operands that are present have one type, of 16 bits, and can be loaded as vec8.
support takes_vec8(std::initializer_list<std::pair<char const*, tensor_view>> operands) {
  dtype const type = operands.begin()->second.type;
  for (auto const& [label, tensor] : operands) {
    if (!tensor.present()) continue;
    if (tensor.type != type || bits(type) != 16) {
      return support::no(std::string(label) + " is " + std::string(name(tensor.type)) +
                         ": all must be bf16 or all f16");
    }
    support const answer = can_take_vec8(label, tensor);
    if (!answer) return answer;
  }
  return support::yes();
}

void run_reference(activate_args const& args, stream where) {
  if (args.quantized.kind != scale_kind::none) return run_quantized_reference(args, where);
  launcher on("activate", args, where);
  on.launch(activate_reference_kernel(args.activation.kind),
            {on.ctas_for(reference_tasks(args.gate), 8), activate_threads}, parameters_of(args));
}

support takes_vectors(activate_args const& args) {
  if (args.quantized.kind != scale_kind::none) {
    return support::no("the result is quantised");
  }
  return takes_vec8({{"gate", args.gate}, {"up", args.up}, {"out", args.out}});
}

support takes_gate_table(activate_args const& args) {
  support const table = pays_table(args);
  return table ? takes_vectors(args) : table;
}

void run_gate_table(activate_args const& args, stream where) {
  launcher on("activate", args, where);
  on.launch(activate_table_kernel(args.activation.kind), {on.multiprocessors(), gate_table_threads},
            parameters_of(args));
}

void run_vectors(activate_args const& args, stream where) {
  launcher on("activate", args, where);
  index_t const vec8s = ceil_div(args.gate.extent[0], activate_rows_each) * args.gate.extent[1] / 8;
  on.launch(activate_vectors_kernel(args.activation.kind, args.gate.type),
            {ctas_for_vec8s(on, vec8s), activate_threads}, parameters_of(args));
}

void run_backward_reference(activate_backward_args const& args, stream where) {
  launcher on("activate_backward", args, where);
  on.launch(activate_backward_reference_kernel(args.activation.kind),
            {on.ctas_for(reference_tasks(args.gate), 8), activate_threads}, parameters_of(args));
}

support takes_vectors(activate_backward_args const& args) {
  return takes_vec8({{"gate", args.gate},
                     {"up", args.up},
                     {"d_out", args.d_out},
                     {"d_gate", args.d_gate},
                     {"d_up", args.d_up}});
}

void run_backward_vectors(activate_backward_args const& args, stream where) {
  launcher on("activate_backward", args, where);
  index_t const vec8s = args.gate.extent[0] * args.gate.extent[1] / 8;
  on.launch(activate_backward_vectors_kernel(args.activation.kind, args.gate.type),
            {ctas_for_vec8s(on, vec8s), activate_threads}, parameters_of(args));
}

constexpr implementation<activate_args> activators[] = {
    {"fp8_row_major_table", takes_row_major_table, run_row_major_table},
    {"fp8_row_major", takes_row_major, run_row_major},
    {"quantized_groups", takes_quantized_groups, run_quantized_groups},
    {"quantized_rows", takes_quantized_rows, run_quantized_rows},
    {"table", takes_gate_table, run_gate_table},
    {"vectors", takes_vectors, run_vectors},
    {"reference", any_call<activate_args>, run_reference},
};
constexpr implementation<activate_backward_args> backward_activators[] = {
    {"vectors", takes_vectors, run_backward_vectors},
    {"reference", any_call<activate_backward_args>, run_backward_reference},
};

}  // namespace

implementation_list<activate_args> activate_list() { return activators; }
implementation_list<activate_backward_args> activate_backward_list() { return backward_activators; }

}  // namespace moe64::cuda
