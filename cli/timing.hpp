#pragma once

#include "cases/parallel.hpp"
#include "cases/problem_case.hpp"
#include "machine.hpp"
#include "progress.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <string_view>

namespace moe64::cli {

struct timing {
  double median = 0.0;  ///< seconds of one execution
  double fastest = 0.0;
  index_t runs = 0;
};

/// One execution to warm up, then at least three, at least one with each of the case's routings in
/// turn, until min_seconds have passed. On a CUDA device: the time that the device needs, in
/// replays of a CUDA graph of several executions.
[[nodiscard]] timing time_of(cases::problem_case& c, stream where, double min_seconds,
                             progress_bar& bar);

/// Seconds of the fastest of three runs of body(thread) on all threads of the executor.
template <class Body>
[[nodiscard]] double fastest_of_three(cpu_executor& executor, Body const& body) {
  using clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {
    auto const begin = clock::now();
    cases::parallel_for(&executor, executor.concurrency(), body);
    best = std::min(best, std::chrono::duration<double>(clock::now() - begin).count());
  }
  return best;
}

/// How close a time is to the least that the machine's limits allow.
struct share_of_limit {
  double share = 0.0;
  std::string
      limit;  ///< the one that binds: copy, read, multiply-add, bf16 dot, bf16 tile, int8 dot
};
/// Memory: reading where there are weights to stream and reading was measured, copying otherwise.
/// Arithmetic: the dot products that the name of the implementation speaks of (bf16, vnni), f32
/// multiply-adds otherwise.
[[nodiscard]] share_of_limit share_of(cases::work const& work, double seconds,
                                      std::string_view implementation,
                                      machine_limits const& limits);

}  // namespace moe64::cli
