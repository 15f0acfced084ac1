#include "cuda/kernels/quantize/dequantize.hpp"

#include "cuda/operations.hpp"
#include "cuda/places.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/vec8.hpp"

#include <cstdint>
#include <string>

namespace moe64::cuda {
namespace {

dequantize_parameters parameters_of(dequantize_args const& args) {
  quantized_view const& q = args.q;
  return {.values = q.values(),
          .scales = q.scales(),
          .global = q.global().values,
          .out = args.out.as_stack(),
          .block_rows = q.layout().rows_per_scale(q.rows()),
          .block_cols = q.layout().cols_per_scale(q.cols()),
          .global_divides = q.global().applied == global_scale::direction::divide,
          .expert_place = places_of(q)};
}

void run_reference(dequantize_args const& args, stream where) {
  launcher on("dequantize", args, where);
  constexpr int threads = 256;
  index_t const tasks = ceil_div(args.out.size(), index_t{threads});
  on.launch(dequantize_reference_kernel(), {on.ctas_for(tasks, 8), threads}, parameters_of(args));
}

support takes_vectors(dequantize_args const& args) {
  quantized_view const& q = args.q;
  if (q.is_plain()) return support::no("values are plain");
  if (q.places().present()) return support::no("q has a table of places");
  index_t const block = q.layout().cols_per_scale(q.cols());
  if (block < q.cols() && block % 8 != 0) {
    return support::no("a scale every " + std::to_string(block) + " columns, not multiples of 8");
  }
  support const values = can_take_vec8("values", q.values());
  return values ? can_take_vec8("out", args.out) : values;
}

void run_vectors(dequantize_args const& args, stream where) {
  launcher on("dequantize", args, where);
  quantized_view const& q = args.q;
  index_t const tiles = q.experts() * ceil_div(q.rows(), dequantize_tile_rows) *
                        ceil_div(q.cols(), dequantize_tile_cols);
  dequantize_parameters p = parameters_of(args);
  bool const aligned = reinterpret_cast<std::uintptr_t>(p.values.data) % 16 == 0;
  if (tiles > 0 && aligned && p.values.is_contiguous()) {
    p.prefetch_bytes = p.values.span_bytes() / 16 * 16;
    p.tile_bytes = p.prefetch_bytes / tiles / 16 * 16;
  }
  on.launch(dequantize_vectors_kernel(q.type(), args.out.type),
            {on.ctas_for(tiles, one_task_each), dequantize_threads}, p);
}

constexpr implementation<dequantize_args> dequantizers[] = {
    {"vectors", takes_vectors, run_vectors},
    {"reference", any_call<dequantize_args>, run_reference},
};

}  // namespace

implementation_list<dequantize_args> dequantize_list() { return dequantizers; }

}  // namespace moe64::cuda
