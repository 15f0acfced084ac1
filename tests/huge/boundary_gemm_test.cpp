// The matrix products and the layer with each operand on both sides of 2^31 and 2^32.
#include "moe64/layer.hpp"
#include "support/huge_memory.hpp"
#include "support/routing.hpp"
#include "support/spread_call.hpp"

namespace moe64::test {
namespace {

using operands = std::vector<tensor_view>;

constexpr index_t experts = 3, rows = 6, hidden = 5, inter = 3, rank = 2;

test_tensor uniform(dtype type, std::vector<index_t> const& extents, std::uint64_t seed) {
  test_tensor result(type, extents);
  result.fill_uniform(seed);
  return result;
}

test_tensor powers_of_two(std::vector<index_t> const& extents) {
  test_tensor result(dtype::f32, extents);
  result.fill([](index_t i, index_t j, index_t k) { return (i + j + k) % 2 == 0 ? 0.5 : 2.0; });
  return result;
}

weight_stack plain_halves(tensor_view const& gate, tensor_view const& up) {
  return weight_stack::gate_up(quantized_view::plain(gate), quantized_view::plain(up));
}

TEST(huge_boundary, grouped_gemm_with_bias_and_low_rank) {
  on_huge_memory([] {
    spread_call call;
    call.input("x", uniform(dtype::bf16, {rows, hidden}, 1))
        .input("gate", uniform(dtype::bf16, {experts, inter, hidden}, 2))
        .input("up", uniform(dtype::bf16, {experts, inter, hidden}, 3))
        .input("expert_begin", make_expert_begin({1, 2, 3}))
        .input("gate bias", uniform(dtype::bf16, {experts, inter}, 4))
        .input("up bias", uniform(dtype::bf16, {experts, inter}, 5))
        .input("u", uniform(dtype::bf16, {rows, rank}, 6))
        .input("low-rank gate", uniform(dtype::bf16, {experts, inter, rank}, 7))
        .input("low-rank up", uniform(dtype::bf16, {experts, inter, rank}, 8))
        .output("y", dtype::bf16, {rows, 2 * inter});
    call.check([](operands const& v) {
      grouped_gemm({.x = quantized_view::plain(v[0]),
                    .weights = plain_halves(v[1], v[2]),
                    .expert_begin = v[3],
                    .bias = {v[4], v[5]},
                    .low_rank = {v[6], plain_halves(v[7], v[8]), 0.5F},
                    .y = v[9]},
                   cpu_stream());
    });
  });
}

TEST(huge_boundary, grouped_gemm_by_scaled_weights) {
  on_huge_memory([] {
    for (bool const transpose : {false, true}) {
      spread_call call;
      call.input("x", uniform(dtype::bf16, {rows, transpose ? inter : hidden}, 1))
          .input("values", uniform(dtype::e4m3, {experts, inter, hidden}, 2))
          .input("scales", powers_of_two({experts, 2, 3}))
          .input("expert_begin", make_expert_begin({1, 2, 3}))
          .output("y", dtype::bf16, {rows, transpose ? hidden : inter});
      call.check([&](operands const& v) {
        grouped_gemm({.x = quantized_view::plain(v[0]),
                      .weights = weight_stack::single(
                          quantized_view::scaled(v[1], v[2], granularity::block(2, 2))),
                      .expert_begin = v[3],
                      .transpose = transpose,
                      .y = v[4]},
                     cpu_stream());
      });
    }
  });
}

TEST(huge_boundary, grouped_gemm_by_packed_weights) {
  on_huge_memory([] {
    spread_call call;
    call.input("x", uniform(dtype::f32, {rows, hidden}, 1))
        .input("values", uniform(dtype::int4, {experts, inter, hidden}, 2))
        .input("scales", powers_of_two({experts, inter, 3}))
        .input("expert_begin", make_expert_begin({1, 2, 3}))
        .output("y", dtype::f32, {rows, inter});
    call.check([](operands const& v) {
      grouped_gemm({.x = quantized_view::plain(v[0]),
                    .weights = weight_stack::single(
                        quantized_view::scaled(v[1], v[2], granularity::group(2))),
                    .expert_begin = v[3],
                    .y = v[4]},
                   cpu_stream());
    });
  });
}

TEST(huge_boundary, grouped_gemm_of_codes) {
  on_huge_memory([] {
    spread_call call;
    call.input("x", uniform(dtype::e4m3, {rows, hidden}, 1))
        .input("x scales", powers_of_two({rows, 3}))
        .input("values", uniform(dtype::e4m3, {experts, inter, hidden}, 2))
        .input("scales", powers_of_two({experts, 2, 2}))
        .input("expert_begin", make_expert_begin({1, 2, 3}))
        .output("y", dtype::f32, {rows, inter});
    call.check([](operands const& v) {
      grouped_gemm({.x = quantized_view::scaled(v[0], v[1], granularity::group(2)),
                    .weights = weight_stack::single(
                        quantized_view::scaled(v[2], v[3], granularity::block(2, 3))),
                    .expert_begin = v[4],
                    .y = v[5]},
                   cpu_stream());
    });
  });
}

TEST(huge_boundary, grouped_gemm_wgrad) {
  on_huge_memory([] {
    spread_call call;
    call.input("dy", uniform(dtype::bf16, {rows, 2 * inter}, 1))
        .input("x", uniform(dtype::bf16, {rows, hidden}, 2))
        .input("expert_begin", make_expert_begin({4, 0, 2}))
        .output("gate", dtype::bf16, {experts, inter, hidden})
        .output("up", dtype::f32, {experts, inter, hidden})
        .output("gate bias", dtype::f32, {experts, inter})
        .output("up bias", dtype::bf16, {experts, inter});
    call.check([](operands const& v) {
      grouped_gemm_wgrad({.dy = v[0],
                          .x = v[1],
                          .expert_begin = v[2],
                          .parts = 2,
                          .d_weights = {v[3], v[4]},
                          .d_bias = {v[5], v[6]}},
                         cpu_stream());
    });
  });
}

/// The layer hands its operands on: none of them may be copied into something narrower on the way.
TEST(huge_boundary, forward_and_backward) {
  on_huge_memory([] {
    constexpr index_t tokens = 4, top_k = 2;
    test_tensor ids(dtype::int64, {tokens, top_k});
    ids.fill([](index_t t, index_t k, index_t) {
      return t == 1 && k == 0 ? -1.0 : static_cast<double>((t + 2 * k) % experts);
    });
    spread_call call;
    call.input("x", uniform(dtype::bf16, {tokens, hidden}, 1))
        .input("expert_ids", std::move(ids))
        .input("weights", uniform(dtype::bf16, {tokens, top_k}, 2))
        .input("gate", uniform(dtype::bf16, {experts, inter, hidden}, 3))
        .input("up", uniform(dtype::bf16, {experts, inter, hidden}, 4))
        .input("down", uniform(dtype::bf16, {experts, hidden, inter}, 5))
        .input("dy", uniform(dtype::bf16, {tokens, hidden}, 6))
        .output("y", dtype::bf16, {tokens, hidden})
        .output("dx", dtype::bf16, {tokens, hidden})
        .output("d_weights", dtype::f32, {tokens, top_k})
        .output("d_gate", dtype::f32, {experts, inter, hidden})
        .output("d_down", dtype::bf16, {experts, hidden, inter});
    call.check([](operands const& v) {
      layer_desc layer;
      layer.gate_up.weights = plain_halves(v[3], v[4]);
      layer.down.weights = weight_stack::single(quantized_view::plain(v[5]));
      layer_gradients gradients;
      gradients.x = v[8];
      gradients.weights = v[9];
      gradients.gate_up.weights[0] = v[10];
      gradients.down.weights[0] = v[11];
      layer_shape const shape = {tokens, top_k, dtype::bf16};
      device const cpu = device::cpu();
      test_tensor const saved = make_workspace(saved_bytes(layer, shape, cpu));
      test_tensor const scratch = make_workspace(forward_bytes(layer, shape, true, cpu));
      test_tensor const back = make_workspace(backward_bytes(layer, shape, gradients, cpu));
      forward(layer,
              {.x = v[0],
               .expert_ids = v[1],
               .weights = v[2],
               .y = v[7],
               .saved = saved.as_workspace(),
               .scratch = scratch.as_workspace()},
              cpu_stream());
      backward(layer,
               {.x = v[0],
                .dy = v[6],
                .top_k = top_k,
                .saved = saved.as_workspace(),
                .scratch = back.as_workspace(),
                .gradients = gradients},
               cpu_stream());
    });
  });
}

}  // namespace
}  // namespace moe64::test
