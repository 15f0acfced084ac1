#include "cpu/permute/combine.hpp"

#include "cpu/gemm/reference/dot.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"
#include "cpu/simd/widths.hpp"

#include <algorithm>

namespace moe64::cpu {

MOE64_DECLARE_WIDTHS(combine_args, combine_simd)
MOE64_DECLARE_WIDTHS(slot_weight_gradient_args, slot_weight_gradient_simd)

index_t expert_of_row(routing_plan const& plan, index_t row) {
  auto const expert_begin = as<std::int64_t, 1>(plan.expert_begin);
  index_t low = 0;
  index_t high = plan.experts;
  while (high - low > 1) {
    index_t const middle = low + (high - low) / 2;
    (expert_begin(middle) <= row ? low : high) = middle;
  }
  return low;
}

namespace {

void combine_reference(combine_args const& args, stream where) {
  routing_plan const& plan = args.plan;
  auto const slot_to_row = as<std::int64_t, 1>(plan.slot_to_row);
  auto const slot_weight = as<float, 1>(plan.slot_weight);
  index_t const hidden = args.y.extent[1];
  index_t const token_bytes = hidden * (plan.top_k + 1) * bits(args.y.type) / 8;
  parallel_ranges(where, plan.tokens, token_bytes, [&](index_t begin, index_t end) {
    float sum[run_length];
    float run[run_length];
    for (index_t token = begin; token < end; ++token) {
      for (index_t col = 0; col < hidden; col += run_length) {
        index_t const count = std::min(run_length, hidden - col);
        std::fill_n(sum, count, 0.0F);
        for (index_t k = 0; k < plan.top_k; ++k) {
          index_t const slot = token * plan.top_k + k;
          index_t const row = slot_to_row(slot);
          if (row < 0) continue;
          load_scaled_row(args.rows, 0, row, col, count, run);
          if (args.weighted) {
            float const weight = slot_weight(slot);
            for (index_t c = 0; c < count; ++c) sum[c] += weight * run[c];
          } else {
            for (index_t c = 0; c < count; ++c) sum[c] += run[c];
          }
        }
        store_row(row_of(args.y, token), col, count, sum);
      }
    }
  });
}

float dot_rows(row_view const& left, row_view const& right, index_t length) {
  static_assert(run_length % lane_count == 0);
  running_dot dot;
  float a[run_length];
  float b[run_length];
  for (index_t at = 0; at < length; at += run_length) {
    index_t const count = std::min(run_length, length - at);
    load_row(left, at, count, a);
    load_row(right, at, count, b);
    dot.add(a, b, count);
  }
  return dot.value();
}

void slot_weight_gradient_reference(slot_weight_gradient_args const& args, stream where) {
  for_each_slot_gradient(args, where,
                         [](row_view const& left, row_view const& right, index_t length) {
                           return dot_rows(left, right, length);
                         });
}

constexpr implementation<combine_args> combiners[] = {
    MOE64_WIDTHS(combine_args, combine_simd, any_call<combine_args>),
    {"reference", any_call<combine_args>, combine_reference},
};
constexpr implementation<slot_weight_gradient_args> gradients[] = {
    MOE64_WIDTHS(slot_weight_gradient_args, slot_weight_gradient_simd,
                 any_call<slot_weight_gradient_args>),
    {"reference", any_call<slot_weight_gradient_args>, slot_weight_gradient_reference},
};

}  // namespace

implementation_list<combine_args> combine_list() { return combiners; }
implementation_list<slot_weight_gradient_args> slot_weight_gradient_list() { return gradients; }

}  // namespace moe64::cpu
