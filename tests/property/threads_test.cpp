// Results never depend on who runs the tasks: thread counts, other executors, repeated and
// concurrent calls.
#include "moe64/cpu.hpp"
#include "support/layer_batch.hpp"
#include "support/layer_fixture.hpp"
#include "support/layer_implementations.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <thread>
#include <vector>

namespace moe64 {
namespace {

using test::layer_batch;
using test::layer_case;
using test::layer_memory;
using test::layer_result;
using test::random_layer_case;

/// Runs tasks on the calling thread, in an order of its own.
class shuffled_executor final : public cpu_executor {
 public:
  shuffled_executor(std::uint64_t seed, index_t concurrency)
      : seed_(seed), concurrency_(concurrency) {}
  [[nodiscard]] index_t concurrency() const noexcept override { return concurrency_; }
  void run(index_t tasks, void (*task)(void*, index_t), void* context) noexcept override {
    most_ = std::max(most_, tasks);
    if (seed_ == 0) {
      for (index_t i = tasks; i-- > 0;) task(context, i);
      return;
    }
    for (index_t const i : test::random_order(seed_ + static_cast<std::uint64_t>(tasks), tasks)) {
      task(context, i);
    }
  }
  [[nodiscard]] index_t most_tasks() const { return most_; }

 private:
  std::uint64_t seed_;
  index_t concurrency_;
  index_t most_ = 0;
};

/// Large enough that every operation, also those that only move memory, has several tasks.
std::vector<layer_case> large_problems() {
  std::vector<layer_case> all;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    layer_case c;
    c.seed = seed;
    c.hidden = seed == 1 ? 280 : 160;
    c.inter = 40;
    c.top_k = 2;
    c.io = seed == 2 ? dtype::bf16 : dtype::f32;
    c.bias = true;
    c.lora_gate_up = 3;
    c.lora_down = 2;
    if (seed != 1) {
      c.weight = weight_format::e4m3;
      c.scale = granularity::block(16, 16);
      c.mode = seed == 3 ? compute_mode::w8a8 : compute_mode::w8a16;
      c.weight_on = seed == 3 ? weight_placement::input : weight_placement::output;
    }
    c.route(seed == 2 ? 1100 : 640, 5);
    all.push_back(std::move(c));
  }
  return all;
}

void expect_the_same_on_any_threads(layer_case const& c) {
  SCOPED_TRACE(to_string(c));
  layer_memory const memory(c);
  memory.run_forward();
  memory.run_backward();
  layer_result const alone = memory.result();
  for (index_t const threads : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 61}) {
    cpu_pool pool(threads);
    memory.poison_outputs();
    memory.run_forward(cpu_stream(&pool));
    memory.run_backward(cpu_stream(&pool));
    EXPECT_EQ(memory.result().difference(alone), "") << threads << " threads";
  }
}

TEST(threads, one_to_sixteen_and_many_give_the_same_bits) {
  for (layer_case const& c : large_problems()) expect_the_same_on_any_threads(c);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    expect_the_same_on_any_threads(random_layer_case(seed));
  }
}

TEST(threads, one_to_sixteen_and_many_give_the_same_bits_on_every_implementation) {
  for (layer_case c : large_problems()) {
    c.route(60, 5);  // what code that takes one number at a time can afford; still many tasks
    test::for_each_implementation(c, expect_the_same_on_any_threads);
  }
}

/// What eight callers use at once: formats that each have code of their own.
std::vector<layer_case> shared_layers() {
  std::vector<layer_case> all;
  for (weight_format const weight :
       {weight_format::bf16, weight_format::e4m3, weight_format::int8}) {
    layer_case c;
    c.seed = 9;
    c.hidden = 136;
    c.inter = 56;
    c.io = dtype::bf16;
    c.parameter_type = dtype::bf16;
    c.weight = weight;
    if (weight != weight_format::bf16) c.scale = granularity::row();
    if (weight == weight_format::int8) c.mode = compute_mode::w8a8;
    if (weight == weight_format::e4m3) {
      c.bias = true;
      c.lora_gate_up = 3;
      c.lora_down = 2;
    }
    c.route(90, 5);
    all.push_back(std::move(c));
  }
  return all;
}

TEST(threads, tasks_in_any_order_give_the_same_bits) {
  std::vector<layer_case> all = large_problems();
  for (std::uint64_t seed = 21; seed <= 50; ++seed) all.push_back(random_layer_case(seed));
  index_t most = 0;
  for (layer_case const& c : all) {
    SCOPED_TRACE(to_string(c));
    layer_memory const memory(c);
    memory.run_forward();
    memory.run_backward();
    layer_result const in_order = memory.result();
    for (std::uint64_t seed = 0; seed <= 2; ++seed) {  // 0: backwards
      for (index_t const concurrency : {1, 64}) {
        shuffled_executor executor(seed, concurrency);
        memory.poison_outputs();
        memory.run_forward(cpu_stream(&executor));
        memory.run_backward(cpu_stream(&executor));
        EXPECT_EQ(memory.result().difference(in_order), "") << "order " << seed;
        most = std::max(most, executor.most_tasks());
      }
    }
  }
  EXPECT_GT(most, 10);  // otherwise there was nothing to shuffle
}

TEST(threads, fifty_runs_have_one_hash) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    layer_case const c = random_layer_case(seed);
    SCOPED_TRACE(to_string(c));
    cpu_pool pool(4);
    std::uint64_t const first = test::run(c).hash();
    layer_memory const memory(c);
    for (int i = 0; i < 50; ++i) {
      memory.poison_outputs();
      memory.run_forward(cpu_stream(&pool));
      memory.run_backward(cpu_stream(&pool));
      ASSERT_EQ(memory.result().hash(), first) << "run " << i;
    }
  }
}

TEST(threads, eight_callers_share_a_pool) {
  cpu_pool pool(4);
  std::vector<layer_case> cases;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) cases.push_back(random_layer_case(seed + 60));
  std::vector<layer_result> wanted, found(cases.size());
  for (layer_case const& c : cases) wanted.push_back(test::run(c));
  for (int round = 0; round < 10; ++round) {
    std::vector<std::thread> callers;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      callers.emplace_back([&, i] { found[i] = test::run(cases[i], cpu_stream(&pool)); });
    }
    for (std::thread& caller : callers) caller.join();
    for (std::size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(found[i].difference(wanted[i]), "") << to_string(cases[i]);
    }
  }
}

/// Eight threads that each run forward and backward of one layer three times at once, in memory of
/// their own; `pool_of(i)` is where caller i runs.
template <class PoolOf>
void expect_eight_callers_at_once(layer_case const& c, PoolOf const& pool_of) {
  SCOPED_TRACE(to_string(c));
  layer_memory const shared(c);
  std::vector<index_t> const tokens = test::all_tokens(c);
  layer_batch alone(shared, tokens, true);
  alone.run(c.implementation);
  layer_result const wanted = alone.result();
  std::deque<layer_batch> calls;
  for (int i = 0; i < 8; ++i) calls.emplace_back(shared, tokens, true);
  std::vector<std::string> found(calls.size());
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    callers.emplace_back([&, i] {
      for (int round = 0; round < 3; ++round) {
        calls[i].run(c.implementation, cpu_stream(pool_of(i)));
        found[i] += calls[i].result().difference(wanted);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (std::string const& difference : found) EXPECT_EQ(difference, "");
}

TEST(threads, eight_callers_of_one_layer_share_a_pool) {
  cpu_pool pool(4);
  for (layer_case const& c : shared_layers()) {
    test::for_each_implementation(c, [&](layer_case const& forced) {
      expect_eight_callers_at_once(forced, [&](std::size_t) { return &pool; });
    });
  }
}

TEST(threads, eight_callers_of_one_layer_have_pools_of_their_own) {
  std::deque<cpu_pool> pools;
  for (index_t i = 0; i < 8; ++i) pools.emplace_back(1 + i % 4);
  for (layer_case const& c : shared_layers()) {
    test::for_each_implementation(c, [&](layer_case const& forced) {
      expect_eight_callers_at_once(forced, [&](std::size_t i) { return &pools[i]; });
    });
  }
}

}  // namespace
}  // namespace moe64
