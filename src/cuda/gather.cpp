#include "cuda/kernels/gather.hpp"

#include "cuda/eights.hpp"
#include "cuda/launch.hpp"
#include "cuda/operations.hpp"
#include "cuda/quantizing.hpp"

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
  on.launch(gather_reference_kernel(), {on.blocks_for(args.plan.slots(), 8), 256},
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
  auto const answer = args.weighted ? can_take_eights : has_vector_rows;
  if (support const x = answer("x", args.x); !x) return x;
  return answer("rows", args.rows);
}

void run_vectors(gather_args const& args, stream where) {
  launcher on("gather", args, where);
  // Blocks that do one step each and are gone keep the memory busier than blocks that stay.
  constexpr index_t most_blocks_each = index_t{1} << 20;
  // Keeps the blocks of a Hopper multiprocessor to three: memory writes fewer rows at a time
  // faster.
  constexpr index_t unused_shared_bytes = index_t{75} << 10;
  index_t const vectors = ceil_div(args.x.extent[1] * bits(args.x.type), 128);
  index_t const scales = args.scales.present() ? args.scales.extent[1] : 0;
  index_t const pieces = args.plan.tokens * std::max(vectors, scales);
  on.launch(args.weighted ? gather_weighted_kernel(args.x.type) : gather_vectors_kernel(),
            {on.blocks_for(ceil_div(pieces, gather_threads), most_blocks_each), gather_threads,
             unused_shared_bytes},
            parameters_of(args));
}

constexpr implementation<gather_args> gatherers[] = {
    {"quantized_groups", takes_quantized_groups, run_quantized_groups},
    {"quantized_rows", takes_quantized_rows, run_quantized_rows},
    {"vectors", can_take_vectors, run_vectors},
    {"reference", any_call<gather_args>, run_reference},
};

}  // namespace

implementation_list<gather_args> gather_list() { return gatherers; }

}  // namespace moe64::cuda
