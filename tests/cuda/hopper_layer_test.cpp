// Whole layers by the GEMMs of sm_90a: against the oracle, a token with the same bits in every
// batch and among any other tokens, and replayed as a graph.
#include "cuda/hopper_layer.hpp"

#include "cases/problem_case.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

std::string words(product kind) {
  std::string const weights = kind == product::bf16    ? " weight=bf16"
                              : kind == product::w4a16 ? " weight=mxfp4"
                                                       : " mode=" + name(kind);
  return weights + " impl=" + hopper_implementation(kind);
}

class hopper_layers : public testing::TestWithParam<product> {
 protected:
  void SetUp() override {
    std::string const lacking = lacks_hopper(GetParam(), target().where);
    if (!lacking.empty()) GTEST_SKIP() << lacking;
  }

  /// Against the oracle, with rows of every expert.
  static void expect_right(std::string const& sizes) {
    std::string const line = sizes + words(GetParam()) + " device=cuda:0";
    SCOPED_TRACE(line);
    cpu_pool pool(static_cast<index_t>(std::max(1U, std::thread::hardware_concurrency())));
    problem const p = parse_problem(line);
    cases::problem_case c(p, {cases::data_mode::random, &pool});
    cases::queue const queue(p.device, nullptr);
    run(c, queue.get());
    auto const found = c.verify(queue.get(), 1e7);
    EXPECT_TRUE(found.ok()) << found.message();
    ASSERT_FALSE(found.outputs.empty());
    auto const& errors = found.outputs.front().by_expert;
    auto const compared =
        std::count_if(errors.begin(), errors.end(), [](double e) { return e >= 0; });
    EXPECT_EQ(compared, p.experts) << "experts were compared";
  }
};

/// As many experts as a token has slots, so that each token compares all of them; the oracle takes
/// two tokens. It takes a second for 1e8 multiply-adds: wide layers have one expert.
TEST_P(hopper_layers, five_models_and_odd_widths) {
  for (char const* const sizes : {"tokens=300 hidden=7168 inter=2048 experts=1 top_k=1",
                                  "tokens=40 hidden=6144 inter=2048 experts=1 top_k=1",
                                  "tokens=9 hidden=6144 inter=3072 experts=1 top_k=1",
                                  "tokens=40 hidden=2048 inter=1536 experts=2 top_k=2",
                                  "tokens=300 hidden=2048 inter=1536 experts=2 top_k=2",
                                  "tokens=9 hidden=2048 inter=768 experts=2 top_k=2",
                                  "tokens=300 hidden=2560 inter=192 experts=4 top_k=4",
                                  "tokens=40 hidden=2880 inter=320 experts=4 top_k=4",
                                  "tokens=9 hidden=2560 inter=704 experts=4 top_k=4",
                                  "tokens=300 hidden=2880 inter=2880 experts=1 top_k=1"}) {
    expect_right(sizes);
  }
}

TEST_P(hopper_layers, any_number_of_experts) {
  // Rows of codes begin at multiples of 16 bytes.
  std::string const inter = GetParam() == product::w4a16 ? "96" : "48";
  for (index_t const experts : {1, 2, 257, 512, 896, 1025}) {
    for (index_t const tokens : {1, 40}) {
      expect_right("tokens=" + std::to_string(tokens) + " hidden=128 inter=" + inter +
                   " experts=" + std::to_string(experts) + " top_k=" + std::to_string(experts));
    }
  }
}

// ---- a token among others -----------------------------------------------------------------------

constexpr hopper_layer::size flash = {2048, 1536, 64, 4, 32768};
constexpr index_t probes[] = {0, 777, 20'000, 32'767};

/// Four different experts.
index_t usual(index_t token, index_t k) { return (token * 37 + token / 64 * 11 + 17 * k) % 64; }

/// The tokens that are looked at keep their experts; the others have those of `other`.
hopper_layer::routing around_probes(hopper_layer::routing const& other) {
  return [other](index_t token, index_t k) {
    bool const fixed = std::find(std::begin(probes), std::end(probes), token) != std::end(probes);
    return fixed ? usual(token, k) : other(token, k);
  };
}

TEST_P(hopper_layers, a_token_has_the_same_bits_in_every_batch_and_beside_any_others) {
  hopper_layer const layer(
      GetParam(), flash,
      {usual, around_probes([](index_t, index_t) { return 17; }),
       around_probes([](index_t token, index_t k) { return token % 3 == 0 ? usual(0, k) : -1; }),
       around_probes([](index_t token, index_t k) { return k * token % 5; }),
       around_probes([](index_t, index_t) { return 64; })});
  for (index_t const token : probes) {
    layer.queue_run(0, token, token + 1);
    auto const alone = layer.y(0, 1);
    ASSERT_TRUE(all_finite(alone));
    for (index_t const batch : {2, 16, 64, 256, 1024, 4096, 8192, 32768}) {
      for (std::size_t routing = 0; routing < 5; ++routing) {
        for (index_t const before : {index_t{0}, batch / 3, batch - 1}) {
          index_t const begin = std::clamp<index_t>(token - before, 0, flash.tokens - batch);
          layer.queue_run(routing, begin, begin + batch);
          ASSERT_EQ(layer.y(token - begin, token - begin + 1), alone)
              << "token " << token << " of " << begin << " to " << begin + batch << ", routing "
              << routing;
        }
      }
    }
  }
}

TEST_P(hopper_layers, a_graph_follows_the_routing) {
  hopper_layer const layer(
      GetParam(), flash,
      {usual, [](index_t, index_t k) { return 3 * k; },
       [](index_t token, index_t k) { return token % 2 == 0 ? usual(token, k) : -1; },
       [](index_t, index_t) { return 63; }, [](index_t, index_t) { return -1; }});
  cuda_buffer const memory(layer.ids(0).span_bytes(), device::cuda(0));
  tensor_view ids = layer.ids(0);
  ids.data = memory.memory().data;
  for (index_t const tokens : {1, 200, 600, 3000}) {  // every size of tiles
    cuda_fill(ids.data, 0, ids.span_bytes(), layer.queue());
    cuda_graph const graph(layer.queue(), [&] { layer.queue_forward(ids, 0, tokens); });
    for (std::size_t const routing : {0U, 4U, 1U, 2U, 3U, 0U}) {
      layer.queue_run(routing, 0, tokens);
      auto const wanted = layer.y(0, tokens);
      layer.queue_run((routing + 1) % 5, 0, tokens);  // what is left in memory is of others
      cuda_copy(ids.data, layer.ids(routing).data, ids.span_bytes(), layer.queue());
      graph.replay(layer.queue());
      ASSERT_EQ(layer.y(0, tokens), wanted) << tokens << " tokens, routing " << routing;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(of, hopper_layers, testing::ValuesIn(every_product),
                         [](auto const& given) { return name(given.param); });

}  // namespace
}  // namespace moe64::test
