// Results never depend on who runs the tasks: thread counts, other executors, repeated and
// concurrent calls.
#include "moe64/cpu.hpp"
#include "support/layer_fixture.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace moe64 {
namespace {

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

TEST(threads, one_to_eight_give_the_same_bits) {
  std::vector<layer_case> all = large_problems();
  for (std::uint64_t seed = 1; seed <= 20; ++seed) all.push_back(random_layer_case(seed));
  for (layer_case const& c : all) {
    SCOPED_TRACE(to_string(c));
    layer_memory const memory(c);
    memory.run_forward();
    memory.run_backward();
    layer_result const alone = memory.result();
    for (index_t threads = 1; threads <= 8; ++threads) {
      cpu_pool pool(threads);
      memory.poison_outputs();
      memory.run_forward(cpu_stream(&pool));
      memory.run_backward(cpu_stream(&pool));
      EXPECT_EQ(memory.result().difference(alone), "") << threads << " threads";
    }
  }
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

TEST(threads, eight_callers_share_one_layer) {
  // The same desc and operands for all; only y and the scratch memory are their own.
  layer_case const c = large_problems()[2];
  layer_memory const shared(c);
  shared.run_forward();
  auto const wanted = test::bits_of(shared.forward.y);
  cpu_pool pool(4);
  std::vector<std::vector<std::uint64_t>> found(8);
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < found.size(); ++i) {
    callers.emplace_back([&, i] {
      test::test_tensor const y(c.io, {c.token_count(), c.hidden});
      test::test_tensor const scratch =
          test::make_workspace(forward_bytes(shared.desc, shared.shape, false, device::cpu()));
      forward_args args = shared.forward;
      args.y = y;
      args.saved = {};
      args.scratch = scratch.as_workspace();
      forward(shared.desc, args, cpu_stream(&pool));
      found[i] = y.codes();
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (auto const& bits : found) EXPECT_EQ(bits, wanted);
}

}  // namespace
}  // namespace moe64
