#include "cuda/kernels/permute/combine.hpp"

#include "cuda/operations.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/vec8.hpp"

#include <fmt/format.h>

namespace moe64::cuda {
namespace {

combine_parameters parameters_of(combine_args const& args) {
  quantized_view const& rows = args.rows;
  bool const divides = rows.global().applied == global_scale::direction::divide;
  return {.rows = {rows.values(), rows.scales(), rows.global().values, divides,
                   rows.layout().cols_per_scale(rows.cols())},
          .plan = args.plan,
          .weighted = args.weighted,
          .y = args.y};
}

void run_reference(combine_args const& args, stream where) {
  launcher on("combine", args, where);
  on.launch(combine_reference_kernel(), {on.ctas_for(args.plan.tokens, 8), 256},
            parameters_of(args));
}

support can_take_vectors(combine_args const& args) {
  if (!args.rows.is_plain()) return support::no("rows are quantised");
  if (args.rows.type() != args.y.type) return support::no("rows and y are of two types");
  if (support const rows = can_take_vec8("rows", args.rows.values()); !rows) return rows;
  return can_take_vec8("y", args.y);
}

/// Tasks of "vectors": a token and combine_columns columns.
index_t vector_tasks(combine_args const& args) {
  return args.plan.tokens * ceil_div(args.y.extent[1], combine_columns);
}

/// Where the tasks of "vectors" would leave SMs idle, or with one round of loads each.
support is_small_batch(combine_args const& args) {
  constexpr index_t most_tasks = 512;
  if (vector_tasks(args) > most_tasks) {
    return support::no(fmt::format("{} tasks of {} columns: it is for at most {}",
                                   vector_tasks(args), combine_columns, most_tasks));
  }
  return can_take_vectors(args);
}

void run_small_batch(combine_args const& args, stream where) {
  launcher on("combine", args, where);
  index_t const tasks = args.plan.tokens * ceil_div(args.y.extent[1], combine_small_batch_columns);
  on.launch(combine_small_batch_kernel(args.y.type, args.weighted),
            {tasks, combine_small_batch_threads}, parameters_of(args));
}

void run_vectors(combine_args const& args, stream where) {
  launcher on("combine", args, where);
  on.launch(combine_vectors_kernel(args.y.type, args.weighted),
            {on.ctas_for(vector_tasks(args), one_task_each), combine_threads}, parameters_of(args));
}

slot_weight_gradient_parameters parameters_of(slot_weight_gradient_args const& args) {
  return {args.left, args.right, args.bias_rows, args.bias, args.plan, args.d_weights};
}

void run_gradient(kernel<slot_weight_gradient_parameters> const& what,
                  slot_weight_gradient_args const& args, stream where) {
  launcher on("slot_weight_gradient", args, where);
  constexpr int threads = 256;
  index_t const tasks = ceil_div(args.plan.slots(), threads / dot_lanes);
  on.launch(what, {on.ctas_for(tasks, 64), threads}, parameters_of(args));
}

support has_contiguous_rows(slot_weight_gradient_args const& args) {
  if (args.bias.present()) return support::no("there is a bias");
  if (args.left.type != args.right.type) return support::no("left and right are of two types");
  if (args.left.stride[1] == 1 && args.right.stride[1] == 1) return support::yes();
  return support::no("columns are not contiguous");
}

void run_gradient_contiguous(slot_weight_gradient_args const& args, stream where) {
  run_gradient(slot_weight_gradient_kernel(args.left.type), args, where);
}
void run_gradient_reference(slot_weight_gradient_args const& args, stream where) {
  run_gradient(slot_weight_gradient_reference_kernel(), args, where);
}

constexpr implementation<combine_args> combiners[] = {
    {"small_batch", is_small_batch, run_small_batch},
    {"vectors", can_take_vectors, run_vectors},
    {"reference", any_call<combine_args>, run_reference},
};
constexpr implementation<slot_weight_gradient_args> gradients[] = {
    {"contiguous", has_contiguous_rows, run_gradient_contiguous},
    {"reference", any_call<slot_weight_gradient_args>, run_gradient_reference},
};

}  // namespace

implementation_list<combine_args> combine_list() { return combiners; }
implementation_list<slot_weight_gradient_args> slot_weight_gradient_list() { return gradients; }

}  // namespace moe64::cuda
