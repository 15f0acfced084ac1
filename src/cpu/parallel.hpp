#pragma once

#include "moe64/cpu.hpp"

#include <algorithm>

namespace moe64 {

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

/// Bytes that one task should move: large enough to hide the cost of handing it out.
inline constexpr index_t task_bytes = index_t{1} << 18;

/// body(begin, end) over [0, items) in runs of about task_bytes.
template <class Body>
void parallel_ranges(stream where, index_t items, index_t bytes_per_item, Body const& body) {
  if (items <= 0) return;
  index_t const run = std::max<index_t>(1, task_bytes / std::max<index_t>(1, bytes_per_item));
  parallel_for(where, ceil_div(items, run), [&](index_t task) {
    index_t const begin = task * run;
    body(begin, begin + std::min(run, items - begin));
  });
}

}  // namespace moe64
