#pragma once

#include "core/view.hpp"

#include <algorithm>

namespace moe64::cpu {

/// Experts cut into tasks, each expert into as many as its rows ask for, and the tasks of all
/// numbered in one row: one huge expert and many tiny ones both give every thread work. Lives on
/// the stack. Built with one look at every expert; finding a task bisects 257 sums and then looks
/// at experts / 256 of them.
class expert_tasks {
 public:
  struct place {
    index_t expert;
    index_t first_row;
    index_t rows;
    index_t task;  ///< of this expert's
  };

  /// expert_begin: [experts + 1] int64, of the plan. tasks_of(rows) >= 0 is the number of tasks of
  /// an expert with so many rows; it must give the same answer in at().
  template <class TasksOf>
  expert_tasks(tensor_view const& expert_begin, TasksOf const& tasks_of)
      : begin_(as<std::int64_t, 1>(expert_begin)),
        experts_(expert_begin.extent[0] - 1),
        chunk_(std::max<index_t>(1, ceil_div(experts_, most_chunks))) {
    for (index_t first = 0; first < experts_; first += chunk_) {
      index_t sum = before_[chunks_];
      index_t const end = std::min(experts_, first + chunk_);
      for (index_t e = first; e < end; ++e) sum += tasks_of(rows_of(e));
      before_[++chunks_] = sum;
    }
  }

  [[nodiscard]] index_t count() const noexcept { return before_[chunks_]; }

  /// Which task of which expert number `task` in [0, count()) is.
  template <class TasksOf>
  [[nodiscard]] place at(index_t task, TasksOf const& tasks_of) const {
    index_t const* const after = std::upper_bound(before_, before_ + chunks_ + 1, task);
    index_t const chunk = after - before_ - 1;
    task -= before_[chunk];
    for (index_t e = chunk * chunk_;; ++e) {
      index_t const rows = rows_of(e);
      index_t const tasks = tasks_of(rows);
      if (task < tasks) return {e, begin_(e), rows, task};
      task -= tasks;
    }
  }

 private:
  static constexpr index_t most_chunks = 256;

  [[nodiscard]] index_t rows_of(index_t e) const { return begin_(e + 1) - begin_(e); }

  view<std::int64_t, 1> begin_;
  index_t experts_;
  index_t chunk_;  ///< experts per sum
  index_t chunks_ = 0;
  index_t before_[most_chunks + 1] = {};  ///< tasks before each chunk; non-decreasing
};

}  // namespace moe64::cpu
