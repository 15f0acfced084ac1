#pragma once

#include "core/view.hpp"
#include "cpu/runtime/parallel.hpp"
#include "moe64/ops.hpp"

/// What the implementations of combine and slot_weight_gradient share.
namespace moe64::cpu {

/// The last expert that begins at or before the row; empty experts begin where the next one does.
[[nodiscard]] index_t expert_of_row(routing_plan const& plan, index_t row);

/// slot_weight_gradient with dot(left row, right row, length) as its dot product.
template <class Dot>
void for_each_slot_gradient(slot_weight_gradient_args const& args, stream where, Dot const& dot) {
  routing_plan const& plan = args.plan;
  auto const slot_to_row = as<std::int64_t, 1>(plan.slot_to_row);
  auto const d_weights = as<float, 2>(args.d_weights);
  index_t const row_bytes = args.left.extent[1] * bits(args.left.type) / 4;
  parallel_ranges(where, plan.slots(), row_bytes, [&](index_t begin, index_t end) {
    for (index_t slot = begin; slot < end; ++slot) {
      index_t const row = slot_to_row(slot);
      float& gradient = d_weights(slot / plan.top_k, slot % plan.top_k);
      gradient = 0.0F;
      if (row < 0) continue;
      gradient = dot(row_of(args.left, row), row_of(args.right, row), args.left.extent[1]);
      if (!args.bias.present()) continue;
      gradient += dot(row_of(args.bias_rows, row), row_of(args.bias, expert_of_row(plan, row)),
                      args.bias.extent[1]);
    }
  });
}

}  // namespace moe64::cpu
