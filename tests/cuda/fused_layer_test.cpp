// All calls of a layer at once have the bits of its calls one by one: the result, the plan, and
// what is saved for backward.
#include "cases/problem_case.hpp"
#include "cuda/hopper_layer.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

class layer_at_once : public testing::Test {
 protected:
  void SetUp() override {
    std::string const lacking = lacks_hopper(product::w8a8, target().where);
    if (!lacking.empty()) GTEST_SKIP() << lacking;
  }
};

/// What a run leaves.
struct left {
  std::vector<std::uint16_t> y;
  std::vector<std::uint8_t> saved;

  bool operator==(left const&) const = default;
};

left run(hopper_layer& layer, char const* implementation, std::size_t routing, index_t tokens,
         index_t capacity = -1) {
  cuda_buffer const saved(layer.bytes_to_save(tokens), device::cuda(0));
  layer.choose(implementation);
  layer.queue_run(routing, 0, tokens, {capacity, saved.memory()});
  left result{layer.y(0, tokens), {}};
  result.saved.resize(static_cast<std::size_t>(saved.memory().bytes));
  cuda_copy(result.saved.data(), saved.memory().data, saved.memory().bytes, layer.queue());
  cuda_wait(layer.queue());
  return result;
}

/// Routings of `experts` experts, with ids that name none.
std::vector<hopper_layer::routing> routings(index_t experts) {
  return {
      [=](index_t t, index_t k) { return (t * 5 + k * 3 + t * k) % experts; },
      [=](index_t, index_t) { return experts - 1; },
      [](index_t, index_t) { return -1; },
      [=](index_t t, index_t k) { return t % 2 == 0 ? k % experts : -1; },
      [=](index_t t, index_t k) { return (t + k) % 3 == 0 ? experts : (t * k) % experts; },
      [=](index_t t, index_t k) { return (t + k) % 4 == 1 ? experts + 7 : (t + k) % experts; },
      [=](index_t t, index_t k) { return (t + k) % 4 == 2 ? -5 : (7 * t + k) % experts; },
  };
}

TEST_F(layer_at_once, has_the_bits_of_its_calls) {
  for (hopper_layer::size const& size : {hopper_layer::size{2048, 1536, 8, 4, 16},
                                         {7168, 256, 9, 8, 16},
                                         {7168, 2048, 9, 8, 16},
                                         {2560, 192, 4, 4, 16},
                                         {2880, 320, 3, 2, 16},
                                         {128, 32, 1, 1, 16},
                                         {272, 704, 257, 8, 16}}) {
    auto const ways = routings(size.experts);
    hopper_layer layer(product::w8a8, size, ways);
    for (index_t const tokens : {1, 7, 8, 9, 16}) {
      for (std::size_t routing = 0; routing < ways.size(); ++routing) {
        for (index_t const capacity : {-1, 0, 3}) {
          left const one_by_one = run(layer, "sm90_w8a8", routing, tokens, capacity);
          ASSERT_EQ(run(layer, "", routing, tokens, capacity), one_by_one)
              << size.hidden << " x " << size.inter << ", " << size.experts << " experts, "
              << tokens << " tokens, routing " << routing << ", capacity " << capacity;
        }
      }
    }
  }
}

/// y of a problem line, which must be right.
std::vector<std::uint8_t> y_of(std::string const& line) {
  cpu_pool pool(4);
  problem const p = parse_problem(line + " mode=w8a8 device=cuda:0");
  cases::problem_case c(p, {cases::data_mode::random, &pool});
  cases::queue const queue(p.device, nullptr);
  run(c, queue.get());
  auto const found = c.verify(queue.get(), 1e7);
  EXPECT_TRUE(found.ok()) << found.message();
  tensor_view const y = c.output("y");
  auto const* const bytes = static_cast<std::uint8_t const*>(y.data);
  return {bytes, bytes + y.span_bytes()};
}

TEST_F(layer_at_once, takes_every_format_of_the_products) {
  for (char const* const line :
       {"tokens=5 hidden=256 inter=96 experts=6 top_k=2 act=gptoss_glu bias=1 io=f16 seed=2",
        "tokens=16 hidden=384 inter=160 experts=9 top_k=8 act=clamped_silu_glu scale_dtype=e8m0",
        "tokens=1 hidden=512 inter=256 experts=5 top_k=3 act=gelu_glu layout=interleaved",
        "tokens=3 hidden=256 inter=160 experts=5 top_k=3 act=step_glu",
        "tokens=9 hidden=256 inter=128 experts=7 top_k=3 act=gelu_tanh_glu routing=sentinel:0.3",
        "tokens=4 hidden=256 inter=224 experts=4 top_k=2 act=silu bias=1 scale_dtype=bf16",
        "tokens=16 hidden=256 inter=224 experts=4 top_k=2 act=relu2 routing=one_expert",
        "tokens=7 hidden=256 inter=64 experts=4 top_k=2 act=gelu io=f16",
        "tokens=8 hidden=256 inter=64 experts=3 top_k=5",
        "tokens=3 hidden=256 inter=96 experts=4 top_k=2 weight_on=input",
        "tokens=3 hidden=256 inter=96 experts=4 top_k=2 scale=row"}) {
    SCOPED_TRACE(line);
    EXPECT_EQ(y_of(line), y_of(std::string(line) + " impl=sm90_w8a8"));
  }
}

TEST_F(layer_at_once, a_token_has_the_same_bits_in_every_batch) {
  auto const ways = routings(64);
  hopper_layer layer(product::w8a8, {2048, 1536, 64, 4, 64}, ways);
  layer.choose("");
  for (index_t const token : {0, 5, 63}) {
    layer.queue_run(0, token, token + 1);
    auto const alone = layer.y(0, 1);
    ASSERT_TRUE(all_finite(alone));
    for (index_t const batch : {2, 8, 16, 17, 32, 64}) {
      for (index_t const before : {index_t{0}, batch - 1}) {
        index_t const begin = std::clamp<index_t>(token - before, 0, 64 - batch);
        layer.queue_run(0, begin, begin + batch);
        ASSERT_EQ(layer.y(token - begin, token - begin + 1), alone)
            << "token " << token << " of " << begin << " to " << begin + batch;
      }
    }
  }
}

/// A graph of many layers, one behind the other, with the routing of its replay.
TEST_F(layer_at_once, a_graph_follows_the_routing) {
  auto const ways = routings(64);
  hopper_layer layer(product::w8a8, {2048, 1536, 64, 4, 16}, ways);
  cuda_buffer const memory(layer.ids(0).span_bytes(), device::cuda(0));
  tensor_view ids = layer.ids(0);
  ids.data = memory.memory().data;
  for (index_t const tokens : {1, 16}) {
    layer.choose("");
    cuda_fill(ids.data, 0, ids.span_bytes(), layer.queue());
    cuda_graph const graph(layer.queue(), [&] {
      for (int i = 0; i < 20; ++i) layer.queue_forward(ids, 0, tokens);
    });
    for (std::size_t const routing : {0U, 2U, 1U, 5U, 0U}) {
      layer.choose("sm90_w8a8");
      layer.queue_run(routing, 0, tokens);
      auto const wanted = layer.y(0, tokens);
      layer.queue_run((routing + 1) % ways.size(), 0, tokens);
      cuda_copy(ids.data, layer.ids(routing).data, ids.span_bytes(), layer.queue());
      graph.replay(layer.queue());
      ASSERT_EQ(layer.y(0, tokens), wanted) << tokens << " tokens, routing " << routing;
    }
  }
}

/// Blocks wait for other blocks of their layer, for which there may be no room yet: another stream
/// has it.
TEST_F(layer_at_once, layers_on_several_streams_share_the_device) {
  constexpr hopper_layer::size size = {2048, 1536, 64, 4, 16};
  auto const ways = routings(size.experts);
  std::vector<std::unique_ptr<hopper_layer>> layers;
  for (int i = 0; i < 4; ++i) {
    layers.push_back(std::make_unique<hopper_layer>(product::w8a8, size, ways));
  }
  std::vector<std::vector<std::uint16_t>> wanted;
  for (auto const& layer : layers) {
    layer->choose("sm90_w8a8");
    layer->queue_run(0, 0, size.tokens);
    wanted.push_back(layer->y(0, size.tokens));
    layer->choose("");
  }
  for (int time = 0; time < 200; ++time) {
    for (auto const& layer : layers) layer->queue_forward(layer->ids(0), 0, size.tokens);
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    ASSERT_EQ(layers[i]->y(0, size.tokens), wanted[i]);
  }
}

}  // namespace
}  // namespace moe64::test
