#include "cuda/kernels/permute/gather.hpp"

#include "cuda/fused_quantize.hpp"
#include "cuda/operations.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/vec8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace moe64::cuda {
namespace {

gather_parameters parameters_of(gather_args const& args) {
  return {args.x, args.scales, args.rows, args.row_scales, args.plan, args.weighted};
}

void run_reference(gather_args const& args, stream where) {
  if (args.quantized.kind != scale_kind::none) return run_quantized_reference(args, where);
  launcher on("gather", args, where);
  on.launch(gather_reference_kernel(), {on.ctas_for(args.plan.slots(), 8), 256},
            parameters_of(args));
}

/// Whether the rows of a matrix are whole vectors of 16 bytes, at multiples of 16 bytes.
support has_vector_rows(char const* argument, tensor_view const& matrix) {
  constexpr index_t vector_bits = 128;
  index_t const size = bits(matrix.type);
  if (matrix.stride[1] != 1 && matrix.extent[1] > 1) {
    return support::no(fmt::format("columns of {} are not adjacent", argument));
  }
  if (matrix.extent[1] * size % vector_bits != 0) {
    return support::no(fmt::format("rows of {} are not whole vectors of 16 bytes", argument));
  }
  bool const aligned = reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
                       (matrix.stride[0] * size % vector_bits == 0 || matrix.extent[0] <= 1);
  if (aligned) return support::yes();
  return support::no(fmt::format("rows of {} do not start at multiples of 16 bytes", argument));
}

support can_take_vectors(gather_args const& args) {
  if (support const answer = is_copy(args); !answer) return answer;
  auto const answer = args.weighted ? can_take_vec8 : has_vector_rows;
  if (support const x = answer("x", args.x); !x) return x;
  return answer("rows", args.rows);
}

gather_vectors_parameters vectors_of(gather_args const& args) {
  routing_plan const& plan = args.plan;
  index_t const size = bits(args.x.type), row_bytes = args.x.extent[1] * size / 8;
  bool const adjacent = args.x.stride[0] == args.x.extent[1];
  return {.from = static_cast<std::uint8_t const*>(args.x.data),
          .to = static_cast<std::uint8_t*>(args.rows.data),
          .slot_to_row = static_cast<std::int64_t const*>(plan.slot_to_row.data),
          .from_step = args.x.stride[0] * size / 8,
          .to_step = args.rows.stride[0] * size / 8,
          .slot_step = plan.slot_to_row.stride[0],
          .tokens = plan.tokens,
          .top_k = plan.top_k,
          .row_vectors = divide_by(row_bytes / 16),
          .ahead_bytes = adjacent ? plan.tokens * row_bytes : 0,
          .slots_ahead = adjacent && plan.slot_to_row.stride[0] == 1 &&
                         reinterpret_cast<std::uintptr_t>(plan.slot_to_row.data) % 16 == 0,
          // The more is read beside what is written, the longer a burst pays.
          .burst_bytes = (plan.top_k <= 4 ? 5U : 4U) << 20,
          .all = parameters_of(args)};
}

void run_vectors(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  // Memory writes fewer rows at a time faster: shared memory that nobody uses keeps the blocks of a
  // multiprocessor to a few.
  index_t const most_blocks =
      args.weighted ? 6 : std::clamp<index_t>(6 - args.plan.top_k / 4, 4, 6);
  index_t const unused_shared_bytes = on.shared_bytes() / most_blocks - 2048;
  bool const scaled = args.scales.present();
  index_t const vectors = ceil_div(args.x.extent[1] * bits(args.x.type), 128);
  index_t const pieces = args.plan.tokens * std::max(vectors, scaled ? args.scales.extent[1] : 0);
  grid const shape = {on.ctas_for(ceil_div(pieces, gather_threads), one_task_each), gather_threads,
                      unused_shared_bytes};
  if (args.weighted) {
    on.launch(gather_weighted_kernel(args.x.type), shape, parameters_of(args));
  } else {
    on.launch(gather_vectors_kernel(scaled, args.plan.top_k), shape, vectors_of(args));
  }
}

constexpr implementation<gather_args> gatherers[] = {
    {"fp8_row_major", takes_row_major, run_row_major, preferred},
    {"quantized_groups", takes_quantized_groups, run_quantized_groups, preferred},
    {"quantized_rows", takes_quantized_rows, run_quantized_rows, preferred},
    {"vectors", can_take_vectors, run_vectors},
    {"reference", any_call<gather_args>, run_reference},
};

}  // namespace

implementation_list<gather_args> gather_list() { return gatherers; }

}  // namespace moe64::cuda
