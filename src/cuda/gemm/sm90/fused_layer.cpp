#include "cuda/gemm/sm90/gemm.hpp"
#include "cuda/gemm/sm90/heuristics.hpp"
#include "cuda/kernels/gemm/sm90/fused_layer/layer.hpp"
#include "cuda/operations.hpp"
#include "cuda/places.hpp"
#include "cuda/plan.hpp"
#include "cuda/quantize/fp8_row_major.hpp"
#include "cuda/quantize/target.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/vec8.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace moe64::cuda {
namespace {

/// Where no token names an expert twice, a tile has all rows of its expert, and weights are read
/// once.
constexpr index_t most_tokens = most_layer_rows;
/// The work counter has 32 bits, and one CTA zeroes the counters of outputs.
constexpr index_t most_width = index_t{1} << 16;

layer_counters counters_of(index_t slots, index_t hidden, index_t inter) {
  return {narrow<int>(slots), narrow<int>(ceil_div(inter, row_major_group)),
          narrow<int>(ceil_div(hidden, 128))};
}

quantize_target rows_of(layer_calls const& calls) {
  return target_of({calls.gather.rows, calls.gather.row_scales, calls.gather.quantized});
}
quantize_target inner_of(layer_calls const& calls) {
  return target_of({calls.activate.out, calls.activate.scales, calls.activate.quantized});
}

/// Rows and activations are quantised as the fp8_row_major kernels do, in scale groups of 128.
support takes_row_major(layer_calls const& calls) {
  for (auto const& [target, width] : {std::pair{rows_of(calls), quantize_row_major_width},
                                      std::pair{inner_of(calls), activate_row_major_width}}) {
    if (support const to = can_be_row_major(target, width); !to) return to;
    if (target.block_cols != row_major_group) return support::no("a row has one scale");
  }
  for (auto const& [label, matrix] :
       {std::pair{"x", calls.gather.x}, std::pair{"gate", calls.activate.gate},
        std::pair{"up", calls.activate.up}}) {
    if (!matrix.present()) continue;
    if (support const rows = has_row_major_rows(label, matrix); !rows) return rows;
  }
  return support::yes();
}

support is_small_batch(plan_args const& args) {
  routing_plan const& plan = args.plan;
  if (plan.tokens > most_tokens || plan.slots() > small_batch) {
    return support::no(fmt::format("{} tokens and {} slots: it takes at most {} and {}",
                                   plan.tokens, plan.slots(), most_tokens, small_batch));
  }
  if (plan.slots() == 0) return support::no("there are no slots");
  return fits_one_launch(args);
}

support takes_layer(layer_calls const& calls) {
  if (support const slots = is_small_batch(calls.plan); !slots) return slots;
  if (calls.counters.bytes == 0) return support::no("it has no memory to count in");
  dtype const type = calls.gather.x.type;
  if (bits(type) != 16) return support::no(fmt::format("x is {}", name(type)));
  for (auto const& [label, tensor] :
       {std::pair{"x", calls.gather.x}, std::pair{"y", calls.combine.y},
        std::pair{"gate", calls.activate.gate}, std::pair{"up", calls.activate.up}}) {
    if (!tensor.present()) continue;
    if (support const answer = can_take_vec16(label, tensor); !answer) return answer;
  }
  if (support const quantised = takes_row_major(calls); !quantised) return quantised;
  if (has_places(calls.gate_up.weights) || has_places(calls.down.weights)) {
    return support::no("weights have a table of places");
  }
  if (support const gate_up = sm90::takes_w8a8(calls.gate_up); !gate_up) return gate_up;
  return sm90::takes_w8a8(calls.down);
}

void run_layer(layer_calls const& calls, stream where) {
  launcher on("layer", calls.plan, where);
  on.check_operands(calls.gather);
  on.check_operands(calls.gate_up);
  on.check_operands(calls.down);
  on.check_operands(calls.combine);
  row_major_target const rows_to = row_major_target_of(rows_of(calls), quantize_row_major_width);
  activate_args const& activate = calls.activate;
  routing_plan const& plan = calls.plan.plan;
  layer_counters const index =
      counters_of(plan.slots(), calls.gather.x.extent[1], calls.activate.gate.extent[1]);
  auto* const counters = static_cast<std::uint32_t*>(calls.counters.data);
  plan_gather_parameters const first = {.plan = rounds_parameters_of(calls.plan),
                                        .gather = {.x = row_major_rows_of(calls.gather.x),
                                                   .to = rows_to,
                                                   .slot_to_row = nullptr,
                                                   .tokens = plan.tokens,
                                                   .top_k = plan.top_k,
                                                   .prefetch_bytes = 0},
                                        .counters = counters,
                                        .counter_words = index.words()};
  index_t const items = plan.tokens * rows_to.row_items.by;
  on.launch(plan_gather_kernel(calls.gather.x.type),
            {ceil_div(items, plan_gather_threads) + 2, plan_gather_threads}, first);
  weight_stack const& gate_up = calls.gate_up.weights;
  tile_shape const tile =
      sm90::choose_tile("layer", sm90::fused_layer_tiles(),
                        {plan.tokens, gate_up.cols(), gate_up.parts() * gate_up.part_rows()},
                        where.device)
          .tile;
  fused_layer_kernel const layer = sm90_fused_layer_kernel(tile, calls.gather.x.type);
  on.launch(layer.run, {on.multiprocessors(), layer.threads, layer.shared_bytes},
            {.gemm = {sm90::parameters(calls.gate_up, where, 128),
                      sm90::parameters(calls.down, where, 128)},
             .activate = {activate.activation, row_major_rows_of(activate.gate),
                          activate.up.present() ? row_major_rows_of(activate.up) : row_major_rows{},
                          row_major_target_of(inner_of(calls), activate_row_major_width)},
             .plan = first.plan,
             .rows = calls.combine.rows.values(),
             .y = calls.combine.y,
             .weighted = calls.combine.weighted,
             .index = index,
             .counters = counters});
}

constexpr implementation<layer_calls> layers[] = {{"sm90_fused_layer", takes_layer, run_layer}};

}  // namespace

implementation_list<layer_calls> layer_list() { return layers; }

index_t layer_counter_bytes(index_t slots, index_t hidden, index_t inter) {
  if (slots > small_batch || hidden > most_width || inter > most_width) return 0;
  return counters_of(slots, hidden, inter).words() * index_t{sizeof(std::uint32_t)};
}

}  // namespace moe64::cuda
