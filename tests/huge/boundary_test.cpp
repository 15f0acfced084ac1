// Every operand of every operation with its elements on both sides of 2^31 and 2^32: values,
// scales, ids and the arrays of the plan. Problems are tiny, addresses are not.
#include "moe64/ops.hpp"
#include "support/huge_memory.hpp"
#include "support/routing.hpp"
#include "support/spread_call.hpp"

namespace moe64::test {
namespace {

using operands = std::vector<tensor_view>;

constexpr index_t tokens = 4, top_k = 2, experts = 3, slots = tokens * top_k, hidden = 5, inter = 3;

/// -1, experts and a duplicate among them.
routing_spec small_routing() {
  return {.tokens = tokens,
          .top_k = top_k,
          .experts = experts,
          .ids = {2, 0, -1, 1, 1, 1, experts, 2},
          .weights = random_weights(7, slots)};
}

test_tensor uniform(dtype type, std::vector<index_t> const& extents, std::uint64_t seed) {
  test_tensor result(type, extents);
  result.fill_uniform(seed);
  return result;
}

test_tensor powers_of_two(dtype type, std::vector<index_t> const& extents) {
  test_tensor result(type, extents);
  result.fill([](index_t i, index_t j, index_t k) { return (i + j + k) % 2 == 0 ? 0.5 : 2.0; });
  return result;
}

/// Adds the five arrays of a plan as inputs.
void add_plan(spread_call& call, test_plan plan) {
  call.input("expert_begin", std::move(plan.expert_begin))
      .input("row_to_slot", std::move(plan.row_to_slot))
      .input("slot_to_row", std::move(plan.slot_to_row))
      .input("slot_weight", std::move(plan.slot_weight))
      .input("status", std::move(plan.status));
}

/// The plan whose arrays are operands [first, first + 5).
routing_plan plan_at(operands const& v, std::size_t first) {
  return {tokens, top_k, experts, v[first], v[first + 1], v[first + 2], v[first + 3], v[first + 4]};
}

TEST(huge_boundary, dequantize) {
  on_huge_memory([] {
    spread_call call;
    call.input("values", uniform(dtype::e4m3, {3, 4, 5}, 1))
        .input("scales", powers_of_two(dtype::f32, {3, 2, 3}))
        .output("out", dtype::bf16, {3, 4, 5});
    call.check([](operands const& v) {
      dequantize({.q = quantized_view::scaled(v[0], v[1], granularity::block(2, 2)), .out = v[2]},
                 cpu_stream());
    });
  });
}

TEST(huge_boundary, dequantize_packed_with_a_global_scale) {
  on_huge_memory([] {
    spread_call call;
    call.input("values", uniform(dtype::fp4, {3, 4, 5}, 1))
        .input("scales", powers_of_two(dtype::e4m3, {3, 4, 3}))
        .input("global", uniform(dtype::f32, {3}, 2))
        .output("out", dtype::f32, {3, 4, 5});
    call.check([](operands const& v) {
      global_scale const global = {v[2], global_scale::direction::divide};
      dequantize(
          {.q = quantized_view::scaled(v[0], v[1], granularity::group(2), global), .out = v[3]},
          cpu_stream());
    });
  });
}

TEST(huge_boundary, quantize) {
  on_huge_memory([] {
    spread_call call;
    call.input("x", uniform(dtype::bf16, {3, 4, 5}, 1))
        .output("values", dtype::e4m3, {3, 4, 5})
        .output("scales", dtype::e8m0, {3, 2, 3});
    call.check([](operands const& v) {
      quantize({.x = v[0], .layout = granularity::block(2, 2), .values = v[1], .scales = v[2]},
               cpu_stream());
    });
  });
}

TEST(huge_boundary, quantize_packed_with_a_global_scale) {
  on_huge_memory([] {
    spread_call call;
    call.input("x", uniform(dtype::f32, {3, 4, 5}, 1))
        .output("values", dtype::fp4, {3, 4, 5})
        .output("scales", dtype::e4m3, {3, 4, 3})
        .output("global", dtype::f32, {3});
    call.check([](operands const& v) {
      quantize({.x = v[0],
                .layout = granularity::group(2),
                .values = v[1],
                .scales = v[2],
                .global = {v[3], global_scale::direction::multiply}},
               cpu_stream());
    });
  });
}

TEST(huge_boundary, route) {
  on_huge_memory([] {
    for (dtype const id : {dtype::int32, dtype::int64}) {
      spread_call call;
      call.input("logits", uniform(dtype::bf16, {tokens, 6}, 1))
          .input("selection_bias", uniform(dtype::f32, {6}, 2))
          .output("expert_ids", id, {tokens, top_k})
          .output("weights", dtype::f32, {tokens, top_k});
      call.check([](operands const& v) {
        route({.logits = v[0],
               .selection_bias = v[1],
               .options = {.score = scoring::sigmoid,
                           .renormalize = true,
                           .expert_groups = 3,
                           .groups_kept = 2},
               .expert_ids = v[2],
               .weights = v[3]},
              cpu_stream());
      });
    }
  });
}

TEST(huge_boundary, route_backward) {
  on_huge_memory([] {
    spread_call call;
    test_plan plan = make_plan(small_routing());
    call.input("logits", uniform(dtype::bf16, {tokens, experts}, 1))
        .input("expert_ids", std::move(plan.ids))
        .input("d_weights", uniform(dtype::f32, {tokens, top_k}, 2))
        .output("d_logits", dtype::f32, {tokens, experts});
    call.check([](operands const& v) {
      route_backward({.logits = v[0],
                      .options = {.score = scoring::softmax},
                      .expert_ids = v[1],
                      .d_weights = v[2],
                      .d_logits = v[3]},
                     cpu_stream());
    });
  });
}

TEST(huge_boundary, plan) {
  on_huge_memory([] {
    for (bool const by_mask : {false, true}) {
      spread_call call;
      if (by_mask) {
        test_tensor mask(dtype::uint8, {slots, experts});
        mask.fill([](index_t t, index_t e, index_t) { return (t + e) % 2 == 0 ? 1.0 : 0.0; });
        call.input("expert_mask", std::move(mask));
      } else {
        test_tensor ids(dtype::int32, {tokens, top_k});
        routing_spec const routing = small_routing();
        ids.fill([&](index_t t, index_t k, index_t) {
          return static_cast<double>(routing.ids[static_cast<std::size_t>(t * top_k + k)]);
        });
        call.input("expert_ids", std::move(ids));
      }
      index_t const rows = by_mask ? slots : tokens;
      index_t const choices = by_mask ? experts : top_k;
      call.input("weights", uniform(dtype::bf16, {rows, choices}, 3))
          .output("expert_begin", dtype::int64, {experts + 1})
          .output("row_to_slot", dtype::int64, {rows * choices})
          .output("slot_to_row", dtype::int64, {rows * choices})
          .output("slot_weight", dtype::f32, {rows * choices})
          .output("status", dtype::int64, {plan_status::count});
      test_tensor const scratch =
          make_workspace(plan_scratch_bytes(rows, choices, experts, device::cpu()));
      call.check([&](operands const& v) {
        moe64::plan({.expert_ids = by_mask ? tensor_view{} : v[0],
                     .expert_mask = by_mask ? v[0] : tensor_view{},
                     .weights = v[1],
                     .experts_total = experts,
                     .plan = {rows, choices, experts, v[2], v[3], v[4], v[5], v[6]},
                     .scratch = scratch.as_workspace()},
                    cpu_stream());
      });
    }
  });
}

TEST(huge_boundary, gather) {
  on_huge_memory([] {
    for (bool const weighted : {false, true}) {
      spread_call call;
      add_plan(call, make_plan(small_routing()));
      call.input("x", uniform(dtype::bf16, {tokens, hidden}, 1))
          .output("rows", dtype::bf16, {slots, hidden});
      call.check([&](operands const& v) {
        moe64::gather({.x = v[5], .plan = plan_at(v, 0), .weighted = weighted, .rows = v[6]},
                      cpu_stream());
      });
    }
  });
}

TEST(huge_boundary, gather_of_codes_and_scales) {
  on_huge_memory([] {
    for (dtype const type : {dtype::e4m3, dtype::fp4}) {
      spread_call call;
      add_plan(call, make_plan(small_routing()));
      call.input("x", uniform(type, {tokens, hidden}, 1))
          .input("scales", uniform(dtype::f32, {tokens, 3}, 2))
          .output("rows", type, {slots, hidden})
          .output("row_scales", dtype::f32, {slots, 3});
      call.check([](operands const& v) {
        moe64::gather(
            {.x = v[5], .scales = v[6], .plan = plan_at(v, 0), .rows = v[7], .row_scales = v[8]},
            cpu_stream());
      });
    }
  });
}

TEST(huge_boundary, combine) {
  on_huge_memory([] {
    spread_call call;
    add_plan(call, make_plan(small_routing()));
    call.input("rows", uniform(dtype::bf16, {slots, hidden}, 1))
        .output("y", dtype::bf16, {tokens, hidden});
    call.check([](operands const& v) {
      moe64::combine(
          {.rows = quantized_view::plain(v[5]), .plan = plan_at(v, 0), .weighted = true, .y = v[6]},
          cpu_stream());
    });
  });
}

TEST(huge_boundary, combine_of_codes_and_scales) {
  on_huge_memory([] {
    spread_call call;
    add_plan(call, make_plan(small_routing()));
    call.input("rows", uniform(dtype::e4m3, {slots, hidden}, 1))
        .input("scales", uniform(dtype::f32, {slots, 3}, 2))
        .output("y", dtype::f32, {tokens, hidden});
    call.check([](operands const& v) {
      moe64::combine({.rows = quantized_view::scaled(v[5], v[6], granularity::group(2)),
                      .plan = plan_at(v, 0),
                      .y = v[7]},
                     cpu_stream());
    });
  });
}

TEST(huge_boundary, slot_weight_gradient) {
  on_huge_memory([] {
    spread_call call;
    add_plan(call, make_plan(small_routing()));
    call.input("left", uniform(dtype::bf16, {slots, hidden}, 1))
        .input("right", uniform(dtype::f32, {slots, hidden}, 2))
        .input("bias_rows", uniform(dtype::bf16, {slots, inter}, 3))
        .input("bias", uniform(dtype::f32, {experts, inter}, 4))
        .output("d_weights", dtype::f32, {tokens, top_k});
    call.check([](operands const& v) {
      moe64::slot_weight_gradient({.left = v[5],
                                   .right = v[6],
                                   .bias_rows = v[7],
                                   .bias = v[8],
                                   .plan = plan_at(v, 0),
                                   .d_weights = v[9]},
                                  cpu_stream());
    });
  });
}

TEST(huge_boundary, activate) {
  on_huge_memory([] {
    spread_call call;
    call.input("gate", uniform(dtype::bf16, {slots, inter}, 1))
        .input("up", uniform(dtype::bf16, {slots, inter}, 2))
        .output("out", dtype::bf16, {slots, inter});
    call.check([](operands const& v) {
      moe64::activate({.activation = {}, .gate = v[0], .up = v[1], .out = v[2]}, cpu_stream());
    });
  });
}

TEST(huge_boundary, activate_backward) {
  on_huge_memory([] {
    spread_call call;
    routing_spec routing = small_routing();
    routing.ids = {2, 0, 0, 1, 1, 1, 0, 2};  // every row has a slot
    add_plan(call, make_plan(routing));
    call.input("gate", uniform(dtype::bf16, {slots, inter}, 1))
        .input("up", uniform(dtype::bf16, {slots, inter}, 2))
        .input("d_out", uniform(dtype::f32, {slots, inter}, 3))
        .output("d_gate", dtype::bf16, {slots, inter})
        .output("d_up", dtype::f32, {slots, inter});
    call.check([](operands const& v) {
      routing_plan const plan = plan_at(v, 0);
      moe64::activate_backward({.activation = {},
                                .gate = v[5],
                                .up = v[6],
                                .d_out = v[7],
                                .weighted_by = plan,
                                .d_gate = v[8],
                                .d_up = v[9]},
                               cpu_stream());
    });
  });
}

}  // namespace
}  // namespace moe64::test
