#include "cpu/runtime/parallel.hpp"
#include "moe64/cpu.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

namespace moe64 {
namespace {

/// How often each task ran.
class tally {
 public:
  explicit tally(index_t tasks) : counts_(static_cast<std::size_t>(tasks)) {}
  static void task(void* context, index_t i) {
    static_cast<tally*>(context)->counts_[static_cast<std::size_t>(i)].fetch_add(1);
  }
  [[nodiscard]] bool once_each() const {
    for (auto const& count : counts_) {
      if (count.load() != 1) return false;
    }
    return true;
  }

 private:
  std::vector<std::atomic<int>> counts_;
};

class cpu_pool_of : public testing::TestWithParam<index_t> {};

TEST_P(cpu_pool_of, runs_every_task_exactly_once) {
  cpu_pool pool(GetParam());
  EXPECT_EQ(pool.concurrency(), GetParam());
  for (index_t const tasks : {0, 1, 2, 3, 7, 64, 1000, 40'000}) {
    for (int repeat = 0; repeat < (tasks > 1000 ? 2 : 20); ++repeat) {
      tally counts(tasks);
      pool.run(tasks, tally::task, &counts);
      ASSERT_TRUE(counts.once_each()) << tasks << " tasks, repeat " << repeat;
    }
  }
}

TEST_P(cpu_pool_of, jobs_of_short_tasks_in_a_row_never_mix) {
  // Threads that wake late for one job find the next one in its place.
  cpu_pool pool(GetParam());
  for (int job = 0; job < 5'000; ++job) {
    index_t const tasks = 2 + job % 5;
    tally counts(tasks);
    pool.run(tasks, tally::task, &counts);
    ASSERT_TRUE(counts.once_each()) << "job " << job;
  }
}

TEST_P(cpu_pool_of, callers_at_once_each_get_their_own_job_done) {
  cpu_pool pool(GetParam());
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      for (int job = 0; job < 200; ++job) {
        tally counts(50);
        pool.run(50, tally::task, &counts);
        if (!counts.once_each()) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(cpu_pool_of, a_task_may_run_a_job_itself) {
  cpu_pool pool(GetParam());
  std::atomic<int> inner{0};
  auto const outer = [&](index_t) {
    parallel_for(cpu_stream(&pool), 10, [&](index_t) { ++inner; });
  };
  parallel_for(cpu_stream(&pool), 10, outer);
  EXPECT_EQ(inner.load(), 100);
}

TEST_P(cpu_pool_of, jobs_with_pauses_between_wake_every_thread_that_sleeps) {
  // Shorter and longer than a thread looks for work before it sleeps.
  cpu_pool pool(GetParam());
  for (int job = 0; job < 60; ++job) {
    std::this_thread::sleep_for(std::chrono::microseconds(job % 6 * 20));
    tally counts(50);
    pool.run(50, tally::task, &counts);
    ASSERT_TRUE(counts.once_each()) << "job " << job;
  }
}

TEST_P(cpu_pool_of, can_be_thrown_away_at_once_or_after_work) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    cpu_pool pool(GetParam());
    if (repeat % 2 == 0) continue;
    tally counts(3);
    pool.run(3, tally::task, &counts);
    ASSERT_TRUE(counts.once_each());
  }
}

INSTANTIATE_TEST_SUITE_P(threads, cpu_pool_of, testing::Range(index_t{1}, index_t{17}));

TEST(cpu_pool, refuses_impossible_sizes) {
  EXPECT_MOE64_ERROR(cpu_pool(0), errc::invalid_argument, "[cpu_pool]", "0");
  EXPECT_MOE64_ERROR(cpu_pool(-3), errc::invalid_argument, "-3");
  EXPECT_MOE64_ERROR(cpu_pool(4097), errc::invalid_argument, "4097", "4096");
}

TEST(cpu_pool, work_is_shared) {
  // Two tasks that wait for each other end only when two threads run them.
  cpu_pool pool(2);
  std::atomic<int> inside{0};
  parallel_for(cpu_stream(&pool), 2, [&](index_t) {
    ++inside;
    auto const limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (inside.load() < 2 && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(inside.load(), 2);
}

double cpu_seconds() {
  return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

TEST(cpu_pool, uses_no_cpu_while_idle) {
  cpu_pool pool(4);
  tally counts(100);
  pool.run(100, tally::task, &counts);
  double const before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(cpu_seconds() - before, 0.02);  // four threads that spin would take up to 4
}

TEST(cpu_pool, all_its_threads_meet_in_one_job) {
  // Also when there are more of them than cores, and after they have slept.
  for (index_t const threads : {2, 4, 16}) {
    cpu_pool pool(threads);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<index_t> inside{0};
    parallel_for(cpu_stream(&pool), threads, [&](index_t) {
      ++inside;
      auto const limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (inside.load() < threads && std::chrono::steady_clock::now() < limit) {
        std::this_thread::yield();
      }
    });
    EXPECT_EQ(inside.load(), threads);
  }
}

/// Runs tasks backwards on the calling thread, and counts.
class backward_executor final : public cpu_executor {
 public:
  [[nodiscard]] index_t concurrency() const noexcept override { return 3; }
  void run(index_t tasks, void (*task)(void*, index_t), void* context) noexcept override {
    ++runs;
    for (index_t i = tasks; i-- > 0;) task(context, i);
  }
  int runs = 0;
};

TEST(cpu_executor, may_be_the_callers_own) {
  test::test_tensor x(dtype::f32, {300, 64});
  x.fill_uniform(1);
  test::test_tensor values(dtype::e4m3, {300, 64}), scales(dtype::f32, {300, 1});
  test::test_tensor values_too(dtype::e4m3, {300, 64}), scales_too(dtype::f32, {300, 1});
  quantize({x, granularity::row(), values, scales, {}, {}}, cpu_stream());
  backward_executor mine;
  quantize({x, granularity::row(), values_too, scales_too, {}, {}}, cpu_stream(&mine));
  EXPECT_GT(mine.runs, 0);
  EXPECT_EQ(values.bytes(), values_too.bytes());
  EXPECT_EQ(scales.bytes(), scales_too.bytes());
}

TEST(parallel, ranges_cover_all_items_once) {
  for (index_t const items : {0, 1, 2, 100, 5000}) {
    for (index_t const bytes : {0, 1, 1000, 1 << 30}) {
      backward_executor mine;
      std::vector<int> counts(static_cast<std::size_t>(items), 0);
      parallel_ranges(cpu_stream(&mine), items, bytes, [&](index_t begin, index_t end) {
        EXPECT_LT(begin, end);
        for (index_t i = begin; i < end; ++i) ++counts[static_cast<std::size_t>(i)];
      });
      EXPECT_EQ(counts, std::vector<int>(static_cast<std::size_t>(items), 1));
    }
  }
}

/// Counts tasks and runs them in order.
class counting_executor final : public cpu_executor {
 public:
  explicit counting_executor(index_t concurrency) : concurrency_(concurrency) {}
  [[nodiscard]] index_t concurrency() const noexcept override { return concurrency_; }
  void run(index_t count, void (*task)(void*, index_t), void* context) noexcept override {
    tasks = count;
    for (index_t i = 0; i < count; ++i) task(context, i);
  }
  index_t tasks = 1;  ///< one task is run without asking

 private:
  index_t concurrency_;
};

TEST(parallel, few_large_items_give_every_thread_work_and_small_ones_stay_together) {
  auto const tasks = [](index_t concurrency, index_t items, index_t bytes) {
    counting_executor mine(concurrency);
    parallel_ranges(cpu_stream(&mine), items, bytes, [](index_t, index_t) {});
    return mine.tasks;
  };
  EXPECT_EQ(tasks(8, 16, 1 << 15), 16);       // half a MiB: two tasks would leave six idle
  EXPECT_EQ(tasks(8, 4, 1 << 30), 4);         // no more tasks than items
  EXPECT_EQ(tasks(2, 100, 16), 1);            // too little to share
  EXPECT_EQ(tasks(2, 1 << 12, 1 << 10), 16);  // 4 MiB in tasks of 256 KiB
  EXPECT_EQ(tasks(64, 1 << 12, 1 << 10), 128);
}

}  // namespace
}  // namespace moe64
