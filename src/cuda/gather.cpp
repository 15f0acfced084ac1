#include "cuda/kernels/permute/gather.hpp"

#include "cuda/operations.hpp"
#include "cuda/quantize/fused_quantize.hpp"
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
    return support::no(fmt::format("columns of {} are not contiguous", argument));
  }
  if (matrix.extent[1] * size % vector_bits != 0) {
    return support::no(fmt::format("rows of {} are not whole vectors of 16 bytes", argument));
  }
  bool const aligned = reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
                       (matrix.stride[0] * size % vector_bits == 0 || matrix.extent[0] <= 1);
  if (aligned) return support::yes();
  return support::no(fmt::format("rows of {} do not start at multiples of 16 bytes", argument));
}

support takes_vectors(gather_args const& args) {
  if (support const answer = is_copy(args); !answer) return answer;
  if (args.weighted) return support::no("rows are weighted");
  support const x = has_vector_rows("x", args.x);
  return x ? has_vector_rows("rows", args.rows) : x;
}

support takes_weighted_vectors(gather_args const& args) {
  if (support const answer = is_copy(args); !answer) return answer;
  if (!args.weighted) return support::no("rows are not weighted");
  support const x = can_take_vec8("x", args.x);
  return x ? can_take_vec8("rows", args.rows) : x;
}

gather_vectors_parameters vectors_of(gather_args const& args) {
  routing_plan const& plan = args.plan;
  index_t const size = bits(args.x.type), row_bytes = args.x.extent[1] * size / 8;
  bool const contiguous = args.x.stride[0] == args.x.extent[1];
  return {.from = static_cast<std::uint8_t const*>(args.x.data),
          .to = static_cast<std::uint8_t*>(args.rows.data),
          .slot_to_row = static_cast<std::int64_t const*>(plan.slot_to_row.data),
          .from_step = args.x.stride[0] * size / 8,
          .to_step = args.rows.stride[0] * size / 8,
          .slot_step = plan.slot_to_row.stride[0],
          .tokens = plan.tokens,
          .top_k = plan.top_k,
          .row_vectors = divide_by(row_bytes / 16),
          .prefetch_bytes = contiguous ? plan.tokens * row_bytes : 0,
          .prefetch_slots = contiguous && plan.slot_to_row.stride[0] == 1 &&
                            reinterpret_cast<std::uintptr_t>(plan.slot_to_row.data) % 16 == 0,
          // The more is read compared with what is written, the longer a burst pays.
          .burst_bytes = (plan.top_k <= 4 ? 5U : 4U) << 20,
          .all = parameters_of(args)};
}

/// A thread per token and vector of 16 bytes, and for the scales. DRAM writes fewer rows at a time
/// faster: unused shared memory limits the CTAs of an SM to `ctas_per_sm`.
grid vector_grid(launcher const& on, gather_args const& args, index_t ctas_per_sm) {
  index_t const unused_shared_bytes = on.shared_bytes() / ctas_per_sm - 2048;
  index_t const vectors = ceil_div(args.x.extent[1] * bits(args.x.type), 128);
  index_t const scales = args.scales.present() ? args.scales.extent[1] : 0;
  index_t const items = args.plan.tokens * std::max(vectors, scales);
  return {on.ctas_for(ceil_div(items, gather_threads), one_task_each), gather_threads,
          unused_shared_bytes};
}

void run_vectors(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  index_t const ctas_per_sm = std::clamp<index_t>(6 - args.plan.top_k / 4, 4, 6);
  on.launch(gather_vectors_kernel(args.scales.present(), args.plan.top_k),
            vector_grid(on, args, ctas_per_sm), vectors_of(args));
}

void run_weighted_vectors(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  on.launch(gather_weighted_kernel(args.x.type), vector_grid(on, args, 6), parameters_of(args));
}

constexpr implementation<gather_args> gatherers[] = {
    {"fp8_row_major", takes_row_major, run_row_major, preferred},
    {"quantized_groups", takes_quantized_groups, run_quantized_groups, preferred},
    {"quantized_rows", takes_quantized_rows, run_quantized_rows, preferred},
    {"vectors", takes_vectors, run_vectors},
    {"weighted_vectors", takes_weighted_vectors, run_weighted_vectors},
    {"reference", any_call<gather_args>, run_reference},
};

}  // namespace

implementation_list<gather_args> gather_list() { return gatherers; }

}  // namespace moe64::cuda
