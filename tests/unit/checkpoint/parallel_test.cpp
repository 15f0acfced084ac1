#include "checkpoint/convert/parallel_work.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>

namespace moe64::test {
namespace {

using checkpoint::progress_counter;
using checkpoint::run_tasks;

TEST(run_tasks, runs_each_task_once) {
  cpu_pool pool(3);
  for (stream const where : {cpu_stream(), cpu_stream(&pool)}) {
    std::vector<std::atomic<int>> runs(1000);
    run_tasks(where, 1000, [&](index_t i) { ++runs[static_cast<std::size_t>(i)]; });
    for (auto const& count : runs) EXPECT_EQ(count, 1);
    run_tasks(where, 0, [](index_t) { FAIL(); });
  }
  EXPECT_EQ(checkpoint::workers_of(cpu_stream()), 1);
  EXPECT_EQ(checkpoint::workers_of(cpu_stream(&pool)), 3);
}

TEST(run_tasks, throws_the_first_exception_and_starts_no_more_tasks) {
  cpu_pool pool(3);
  for (stream const where : {cpu_stream(), cpu_stream(&pool)}) {
    std::atomic<int> begun = 0;
    std::atomic<bool> thrown = false;
    try {
      run_tasks(where, 100'000, [&](index_t i) {
        ++begun;
        if (thrown) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (i == 5) {
          thrown = true;
          throw std::runtime_error("five");
        }
      });
      FAIL();
    } catch (std::runtime_error const& caught) {
      EXPECT_EQ(std::string(caught.what()), "five");
    }
    EXPECT_LT(begun, 100'000);
  }
}

TEST(progress_counter, tells_from_one_thread_at_a_time_and_ends_with_all) {
  cpu_pool pool(4);
  std::atomic<int> inside = 0;
  std::atomic<bool> overlapped = false;
  index_t last = 0;
  progress_report const report = [&](index_t done, index_t total) {
    if (++inside > 1) overlapped = true;
    EXPECT_LE(done, total);
    last = done;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --inside;
  };
  progress_counter counter(report, 4000);
  run_tasks(cpu_stream(&pool), 4000, [&](index_t i) {
    if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    counter.add(1);
  });
  counter.finish();
  EXPECT_FALSE(overlapped);
  EXPECT_EQ(last, 4000);
  EXPECT_EQ(counter.done(), 4000);
}

TEST(progress_counter, without_a_report_only_counts) {
  progress_report const none;
  progress_counter counter(none, 10);
  counter.add(3);
  counter.finish();
  EXPECT_EQ(counter.done(), 3);
}

}  // namespace
}  // namespace moe64::test
