#pragma once

#include "moe64/cpu.hpp"

#include <algorithm>

namespace moe64 {

/// How many tasks the stream runs at once.
[[nodiscard]] inline index_t concurrency_of(stream where) noexcept {
  auto const* const executor = static_cast<cpu_executor const*>(where.handle);
  return executor == nullptr ? 1 : std::max<index_t>(1, executor->concurrency());
}

/// body(i) for every i in [0, tasks) on the executor of the stream. body must not throw and must
/// write memory that no other task touches.
template <class Body>
void parallel_for(stream where, index_t tasks, Body const& body) {
  auto* const executor = static_cast<cpu_executor*>(where.handle);
  if (executor == nullptr || tasks <= 1) {
    for (index_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  executor->run(
      tasks, [](void* context, index_t i) { (*static_cast<Body const*>(context))(i); },
      const_cast<Body*>(&body));
}

/// Bytes that one task should move: enough to hide the cost of handing it out, ...
inline constexpr index_t task_bytes = index_t{1} << 18;
/// ... and when there are too few such tasks to go round, enough to be worth a thread's attention.
inline constexpr index_t least_task_bytes = index_t{1} << 14;

/// body(begin, end) over [0, items) in runs of about task_bytes, shorter where some thread would
/// have none. Items must not depend on each other: where the cuts lie depends on the executor.
template <class Body>
void parallel_ranges(stream where, index_t items, index_t bytes_per_item, Body const& body) {
  if (items <= 0) return;
  auto const* const executor = static_cast<cpu_executor const*>(where.handle);
  if (executor == nullptr) {
    body(index_t{0}, items);
    return;
  }
  // Twice the threads: one that starts late or is interrupted then holds up half a share.
  index_t const share = ceil_div(items, 2 * std::max<index_t>(1, executor->concurrency()));
  index_t const bytes = std::max<index_t>(1, bytes_per_item);
  index_t const least = std::max<index_t>(1, least_task_bytes / bytes);
  index_t const most = std::max<index_t>(1, task_bytes / bytes);
  index_t const run = std::clamp(share, least, most);
  parallel_for(where, ceil_div(items, run), [&](index_t task) {
    index_t const begin = task * run;
    body(begin, begin + std::min(run, items - begin));
  });
}

}  // namespace moe64
