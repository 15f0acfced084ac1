#include "cpu/runtime/expert_tasks.hpp"

#include "cpu/runtime/parallel.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

namespace moe64::cpu {
namespace {

std::vector<index_t> begins(std::vector<index_t> const& rows) {
  std::vector<index_t> result(rows.size() + 1, 0);
  std::partial_sum(rows.begin(), rows.end(), result.begin() + 1);
  return result;
}

template <class TasksOf>
void expect_every_task_once(std::vector<index_t> const& rows, TasksOf const& tasks_of) {
  std::vector<index_t> const begin = begins(rows);
  tensor_view const view = tensor_view::contiguous(begin.data(), dtype::int64, {std::ssize(begin)});
  expert_tasks const tasks(view, tasks_of);
  index_t number = 0;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    for (index_t task = 0; task < tasks_of(rows[e]); ++task, ++number) {
      ASSERT_LT(number, tasks.count());
      auto const found = tasks.at(number, tasks_of);
      ASSERT_EQ(found.expert, static_cast<index_t>(e)) << "task " << number;
      ASSERT_EQ(found.first_row, begin[e]) << "task " << number;
      ASSERT_EQ(found.rows, rows[e]) << "task " << number;
      ASSERT_EQ(found.task, task) << "task " << number;
    }
  }
  EXPECT_EQ(tasks.count(), number);
}

index_t tiles_of(index_t rows) { return rows == 0 ? 0 : 3 * ceil_div(rows, 32); }

TEST(expert_tasks, of_every_number_of_experts_about_a_block) {
  test::random_source const random(1);
  for (index_t const experts : {0, 1, 2, 64, 255, 256, 257, 511, 512, 513, 1000, 5000}) {
    std::vector<index_t> rows;
    for (index_t e = 0; e < experts; ++e) {
      rows.push_back(random.chance(2 * e, 0.6) ? 0 : random.below(2 * e + 1, 100));
    }
    expect_every_task_once(rows, tiles_of);
    expect_every_task_once(rows, [](index_t) { return index_t{2}; });  // also those without rows
  }
}

TEST(expert_tasks, skip_experts_without_rows) {
  expect_every_task_once(std::vector<index_t>(70'000, 0), tiles_of);
  for (index_t const used : {0, 1, 34'999, 69'998, 69'999}) {
    std::vector<index_t> rows(70'000, 0);
    rows[static_cast<std::size_t>(used)] = 1000;
    expect_every_task_once(rows, tiles_of);
  }
}

TEST(expert_tasks, more_than_2_32_rows_and_tasks) {
  index_t const many = index_t{1} << 40;
  std::vector<index_t> const begin{0, many, many, 2 * many + 5};
  tensor_view const view = tensor_view::contiguous(begin.data(), dtype::int64, {4});
  expert_tasks const tasks(view, [](index_t rows) { return rows; });
  EXPECT_EQ(tasks.count(), 2 * many + 5);
  auto const found = tasks.at(many + 7, [](index_t rows) { return rows; });
  EXPECT_EQ(found.expert, 2);
  EXPECT_EQ(found.first_row, many);
  EXPECT_EQ(found.rows, many + 5);
  EXPECT_EQ(found.task, 7);
}

TEST(expert_tasks, are_found_from_many_threads) {
  std::vector<index_t> rows(512, 1);
  rows[100] = 4000;
  std::vector<index_t> const begin = begins(rows);
  tensor_view const view = tensor_view::contiguous(begin.data(), dtype::int64, {std::ssize(begin)});
  expert_tasks const tasks(view, tiles_of);
  std::vector<std::atomic<index_t>> seen(512);
  cpu_pool pool(4);
  parallel_for(cpu_stream(&pool), tasks.count(), [&](index_t task) {
    ++seen[static_cast<std::size_t>(tasks.at(task, tiles_of).expert)];
  });
  for (std::size_t e = 0; e < rows.size(); ++e) EXPECT_EQ(seen[e].load(), tiles_of(rows[e]));
}

}  // namespace
}  // namespace moe64::cpu
