// A layer recorded once as a CUDA graph and replayed with other tokens and other routing.
#include "support/layer_fixture.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_memory;
using test::mirror;
using test::random_layer_case;
using test::target;

/// Other tokens, ids and slot weights, of the same extents.
layer_case other_routing(layer_case c, std::uint64_t seed) {
  index_t const tokens = c.token_count();
  c.tokens = test::random_order(seed, tokens);
  bool const weighted = !c.weights.empty();
  c.ids = test::random_order(seed, std::ssize(c.ids));
  for (index_t& id : c.ids) id = id * 7 % (std::ssize(c.experts) + 2) - 1;  // -1 and experts too
  if (seed % 4 == 0) c.ids.assign(c.ids.size(), -1);
  if (seed % 4 == 1) c.ids.assign(c.ids.size(), 0);
  if (weighted) c.weigh();
  return c;
}

/// The bytes of an input of one memory into the same input of another.
void assign(tensor_view const& to, tensor_view const& from) {
  if (to.present()) std::memcpy(to.data, from.data, static_cast<std::size_t>(to.span_bytes()));
}

void expect_replays(layer_case const& first) {
  SCOPED_TRACE(to_string(first));
  stream const where = target().where;
  layer_memory const recorded(first);
  mirror memory(where);
  memory.add(recorded.desc);
  memory.add(recorded.forward);
  memory.add(recorded.backward);
  memory.upload();
  layer_desc const desc = memory.moved(recorded.desc);
  forward_args const there = memory.moved(recorded.forward);
  backward_args const back = memory.moved(recorded.backward);
  cuda_graph const graph(where, [&] {
    forward(desc, there, where);
    backward(desc, back, where);
  });
  auto const update = [&](tensor_view const& device, tensor_view const& host,
                          tensor_view const& from) {
    assign(host, from);
    if (host.present()) cuda_copy(device.data, host.data, host.span_bytes(), where);
  };
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    layer_case const next = other_routing(first, seed);
    layer_memory const direct(next);
    direct.run_forward();
    direct.run_backward();
    update(there.x, recorded.forward.x, direct.forward.x);
    update(there.expert_ids, recorded.forward.expert_ids, direct.forward.expert_ids);
    update(there.weights, recorded.forward.weights, direct.forward.weights);
    update(back.dy, recorded.backward.dy, direct.backward.dy);
    graph.replay(where);
    ASSERT_EQ(memory.download(), "");
    EXPECT_EQ(recorded.result().difference(direct.result()), "") << "routing " << seed;
  }
}

TEST(graph, replays_follow_the_routing) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    layer_case c = random_layer_case(seed);
    if (c.token_count() > 0 && c.stored_experts() > 0) expect_replays(c);
  }
}

TEST(graph, of_more_tokens_than_one_block_plans) {
  layer_case c;
  c.hidden = 72;
  c.inter = 40;
  c.top_k = 4;
  c.weight = weight_format::e4m3;
  c.scale = granularity::block(16, 16);
  c.io = dtype::bf16;
  c.bias = true;
  c.lora_gate_up = c.lora_down = 3;
  c.route(1500, 9);
  expect_replays(c);
}

TEST(graph, a_call_that_is_refused_leaves_the_stream_usable) {
  layer_case const c = random_layer_case(3);
  layer_memory const memory(c);
  stream const where = target().where;
  EXPECT_THROW(cuda_graph(where, [&] { forward(memory.desc, memory.forward, where); }), error);
  EXPECT_NO_THROW(cuda_wait(where));
  memory.run_forward();
}

}  // namespace
}  // namespace moe64
