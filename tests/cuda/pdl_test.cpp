// Kernels that begin before the one before them has ended: layers queued without a pause, in the
// memory of one another, against the same operations one at a time.
#include "support/layer_fixture.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_memory;
using test::mirror;
using test::target;

/// Device memory, piece by piece.
class pieces {
 public:
  explicit pieces(moe64::device where) : memory_(index_t{64} << 20, where) {}
  tensor_view take(dtype type, std::initializer_list<index_t> extents) {
    auto* const data = static_cast<std::uint8_t*>(memory_.memory().data) + used_;
    auto const piece = tensor_view::contiguous(data, type, extents, memory_.memory().device);
    used_ += align_up(piece.span_bytes(), 256);
    EXPECT_LE(used_, memory_.memory().bytes);
    return piece;
  }
  workspace scratch(index_t bytes) {
    return {take(dtype::uint8, {bytes}).data, bytes, memory_.memory().device};
  }

 private:
  cuda_buffer memory_;
  index_t used_ = 0;
};

struct codes {
  tensor_view values, scales;
  granularity layout;
};
codes take_codes(pieces& memory, weight_stack const& weights, index_t rows) {
  granularity const layout = activation_granularity(weights.layout());
  return {memory.take(dtype::e4m3, {rows, weights.cols()}),
          memory.take(dtype::f32, {rows, layout.grid_cols(weights.cols())}), layout};
}

/// A w8a8 layer as single calls, each of which is done before the next begins. Nothing is made on
/// the way of something else.
void forward_in_steps(layer_desc const& layer, forward_args const& call, stream where) {
  index_t const tokens = call.x.extent[0], top_k = call.expert_ids.extent[1];
  index_t const rows = tokens * top_k, inter = layer.inter(), experts = layer.experts();
  pieces memory(where.device);
  routing_plan const plan =
      bind_plan(memory.scratch(plan_bytes(tokens, top_k, experts)), tokens, top_k, experts);
  codes const x = take_codes(memory, layer.gate_up.weights, tokens);
  codes const x_rows = take_codes(memory, layer.gate_up.weights, rows);
  codes const inner = take_codes(memory, layer.down.weights, rows);
  tensor_view const gate_up = memory.take(call.x.type, {rows, layer.gate_up.weights.rows()});
  tensor_view const activated = memory.take(call.x.type, {rows, inter});
  tensor_view const out = memory.take(call.x.type, {rows, layer.hidden()});
  moe64::plan({.expert_ids = call.expert_ids,
               .weights = call.weights,
               .experts_total = experts,
               .plan = plan,
               .scratch = memory.scratch(plan_scratch_bytes(tokens, top_k, experts, where.device))},
              where);
  cuda_wait(where);
  quantize({.x = call.x, .layout = x.layout, .values = x.values, .scales = x.scales}, where);
  cuda_wait(where);
  gather({.x = x.values,
          .scales = x.scales,
          .plan = plan,
          .rows = x_rows.values,
          .row_scales = x_rows.scales},
         where);
  cuda_wait(where);
  grouped_gemm({.x = quantized_view::scaled(x_rows.values, x_rows.scales, x_rows.layout),
                .weights = layer.gate_up.weights,
                .expert_begin = plan.expert_begin,
                .bias = layer.gate_up.bias,
                .y = gate_up},
               where);
  cuda_wait(where);
  activate({.activation = layer.activation,
            .gate = gate_up.slice(1, 0, inter),
            .up = gate_up.slice(1, inter, 2 * inter),
            .live_rows = plan.live_rows(),
            .out = activated},
           where);
  cuda_wait(where);
  quantize({.x = activated,
            .layout = inner.layout,
            .values = inner.values,
            .scales = inner.scales,
            .live_rows = plan.live_rows()},
           where);
  cuda_wait(where);
  grouped_gemm({.x = quantized_view::scaled(inner.values, inner.scales, inner.layout),
                .weights = layer.down.weights,
                .expert_begin = plan.expert_begin,
                .bias = layer.down.bias,
                .y = out},
               where);
  cuda_wait(where);
  combine(
      {.rows = quantized_view::plain(out), .plan = plan, .weighted = true, .y = call.y.as_matrix()},
      where);
  cuda_wait(where);
}

std::vector<std::uint8_t> bytes_of(tensor_view const& y, stream where) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(y.span_bytes()));
  cuda_copy(bytes.data(), y.data, y.span_bytes(), where);
  cuda_wait(where);
  return bytes;
}

/// A layer on the device.
struct there {
  layer_memory host;
  mirror memory;
  layer_desc desc;
  forward_args call;

  there(layer_case const& c, stream where) : host(c), memory(where) {
    memory.add(host.desc);
    memory.add(host.forward);
    memory.upload();
    desc = memory.moved(host.desc);
    call = memory.moved(host.forward);
  }
};

layer_case case_of(index_t tokens, granularity const& scale) {
  layer_case c;
  c.hidden = 512;
  c.inter = 384;
  c.top_k = 4;
  c.weight = weight_format::e4m3;
  c.scale = scale;
  c.io = dtype::bf16;
  c.mode = compute_mode::w8a8;
  c.act = {activation::silu_glu};
  c.route(tokens, 24);
  return c;
}

/// The same layer with other tokens and other routing.
layer_case other(layer_case c) {
  for (index_t& token : c.tokens) token += 1000;
  for (index_t& id : c.ids) id = id < 0 ? 5 : (id * 7 + 3) % 24;
  return c;
}

class pdl_sequence : public testing::TestWithParam<index_t> {};

TEST_P(pdl_sequence, calls_in_a_row_in_the_same_memory) {
  stream const where = target().where;
  for (granularity const& scale : {granularity::block(128, 128), granularity::row()}) {
    layer_case const c = case_of(GetParam(), scale);
    there const a(c, where), b(other(c), where);
    forward_args second = b.call;
    second.y = a.call.y;
    second.saved = a.call.saved;
    second.scratch = a.call.scratch;
    forward_in_steps(a.desc, a.call, where);
    auto const wanted_a = bytes_of(a.call.y, where);
    forward_in_steps(b.desc, second, where);
    auto const wanted_b = bytes_of(a.call.y, where);
    ASSERT_NE(wanted_a, wanted_b);
    auto const queue = [&](int calls) {
      for (int i = 0; i < calls; ++i) {
        bool const even = i % 2 == 0;
        forward(even ? a.desc : b.desc, even ? a.call : second, where);
      }
    };
    cuda_graph const odd(where, [&] { queue(41); }), even(where, [&] { queue(40); });
    for (int round = 0; round < 10; ++round) {
      SCOPED_TRACE(to_string(scale) + ", round " + std::to_string(round));
      queue(17);
      ASSERT_TRUE(bytes_of(a.call.y, where) == wanted_a) << "queued";
      even.replay(where);
      ASSERT_TRUE(bytes_of(a.call.y, where) == wanted_b) << "a graph";
      even.replay(where);
      odd.replay(where);
      ASSERT_TRUE(bytes_of(a.call.y, where) == wanted_a) << "two graphs";
    }
  }
}

/// expert_begin is what the call before has written: operands_ready would be a lie.
TEST_P(pdl_sequence, products_behind_the_plan_that_they_follow) {
  stream const where = target().where;
  layer_case const c = case_of(GetParam(), granularity::block(128, 128));
  there const a(c, where), b(other(c), where);
  index_t const tokens = GetParam(), top_k = c.top_k, rows = tokens * top_k, experts = 24;
  pieces memory(where.device);
  routing_plan const plan =
      bind_plan(memory.scratch(plan_bytes(tokens, top_k, experts)), tokens, top_k, experts);
  workspace const scratch =
      memory.scratch(plan_scratch_bytes(tokens, top_k, experts, where.device));
  codes const x = take_codes(memory, a.desc.gate_up.weights, rows);
  tensor_view const y = memory.take(dtype::bf16, {rows, a.desc.gate_up.weights.rows()});
  cuda_fill(x.values.data, 0x38, x.values.span_bytes(), where);  // 1
  cuda_fill(x.scales.data, 0x3c, x.scales.span_bytes(), where);
  auto const multiply = [&](there const& of, bool wait) {
    cuda_fill(y.data, 0, y.span_bytes(), where);
    moe64::plan({.expert_ids = of.call.expert_ids,
                 .experts_total = experts,
                 .plan = plan,
                 .scratch = scratch},
                where);
    if (wait) cuda_wait(where);
    grouped_gemm({.x = quantized_view::scaled(x.values, x.scales, x.layout),
                  .weights = a.desc.gate_up.weights,
                  .expert_begin = plan.expert_begin,
                  .y = y},
                 where);
  };
  multiply(a, true);
  auto const wanted_a = bytes_of(y, where);
  multiply(b, true);
  auto const wanted_b = bytes_of(y, where);
  ASSERT_NE(wanted_a, wanted_b);
  for (int round = 0; round < 30; ++round) {
    multiply(a, false);
    ASSERT_TRUE(bytes_of(y, where) == wanted_a) << round;
    multiply(a, false);
    multiply(b, false);
    ASSERT_TRUE(bytes_of(y, where) == wanted_b) << round;
  }
}

INSTANTIATE_TEST_SUITE_P(tokens, pdl_sequence, testing::Values(1, 2, 5, 16, 64, 200, 700, 3000),
                         [](auto const& given) { return std::to_string(given.param); });

}  // namespace
}  // namespace moe64
