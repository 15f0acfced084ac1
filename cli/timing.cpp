#include "timing.hpp"

#include "moe64/cuda.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

namespace moe64::cli {

namespace {

/// run(i), which returns seconds, for i = 0, 1, ... at least `least` times, until min_seconds have
/// passed.
template <class Run>
timing repeat(index_t least, double min_seconds, progress_bar& bar, Run const& run) {
  constexpr index_t most = 100000;
  std::vector<double> seconds;
  double total = 0.0;
  while (std::ssize(seconds) < least || (total < min_seconds && std::ssize(seconds) < most)) {
    seconds.push_back(run(std::ssize(seconds)));
    total += seconds.back();
    double const expected = min_seconds / total * static_cast<double>(std::ssize(seconds));
    bar.update(std::ssize(seconds), std::max(least, std::lround(std::min(expected, 1e6))));
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), std::ssize(seconds)};
}

/// Seconds of what body() queues, as the device sees them.
template <class Body>
double device_seconds(cuda_timer& timer, stream where, Body const& body) {
  timer.start(where);
  body();
  timer.stop(where);
  return timer.milliseconds() / 1e3;
}

/// Replays of a graph of so many executions that it takes two milliseconds at least: the time of
/// the device, without that of the host which queues the work, and with next to nothing of the 2 to
/// 4 microseconds that a graph takes to start, as a copy that takes as long has next to nothing of
/// them. Between replays the device rests as long as it worked: without pauses its clock may fall
/// by a third within a second. The executions take turns among the routings.
timing time_on_cuda(cases::problem_case& c, stream where, double min_seconds, progress_bar& bar) {
  constexpr double least_seconds = 2e-3;
  constexpr index_t most_rounds = 500;
  cuda_timer timer(where.device);
  auto const run_round = [&] {
    for (index_t routing = 0; routing < c.routings(); ++routing) {
      c.use_routing(routing);
      c.execute(where);
    }
  };
  double const round = device_seconds(timer, where, run_round);
  auto const rounds =
      std::clamp<index_t>(std::lround(std::ceil(least_seconds / round)), 1, most_rounds);
  cuda_graph const graph(where, [&] {
    for (index_t i = 0; i < rounds; ++i) run_round();
  });
  graph.replay(where);  // the first one moves it to the device
  cuda_wait(where);
  double seconds = 0.0;
  auto const executions = static_cast<double>(rounds * c.routings());
  return repeat(10, min_seconds / executions, bar, [&](index_t) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    seconds = device_seconds(timer, where, [&] { graph.replay(where); });
    return seconds / executions;
  });
}

timing time_on_cpu(cases::problem_case& c, stream where, double min_seconds, progress_bar& bar) {
  using clock = std::chrono::steady_clock;
  return repeat(std::max<index_t>(3, c.routings()), min_seconds, bar, [&](index_t i) {
    c.use_routing(i % c.routings());
    auto const begin = clock::now();
    c.execute(where);
    return std::chrono::duration<double>(clock::now() - begin).count();
  });
}

}  // namespace

timing time_of(cases::problem_case& c, stream where, double min_seconds, progress_bar& bar) {
  run(c, where);
  bool const on_cpu = where.device.kind == device_kind::cpu;
  timing const found =
      on_cpu ? time_on_cpu(c, where, min_seconds, bar) : time_on_cuda(c, where, min_seconds, bar);
  c.use_routing(0);
  return found;
}

share_of_limit share_of(cases::work const& work, double seconds, std::string_view implementation,
                        machine_limits const& limits) {
  struct limit {
    char const* name;
    double per_second;
  };
  auto const named = [&](char const* word) {
    return implementation.find(word) != std::string_view::npos;
  };
  limit memory{"copy", limits.copy_bytes_per_s};
  if (work.weight_bytes > 0.0 && limits.read_bytes_per_s > 0.0) {
    memory = {"read", limits.read_bytes_per_s};
  }
  limit arithmetic{"multiply-add", limits.fma_flops_per_s};
  if (named("amx") && limits.bf16_tile_flops_per_s > 0.0) {
    arithmetic = {"bf16 tile", limits.bf16_tile_flops_per_s};
  } else if (named("bf16") && limits.bf16_flops_per_s > 0.0) {
    arithmetic = {"bf16 dot", limits.bf16_flops_per_s};
  } else if (named("vnni") && limits.int8_ops_per_s > 0.0) {
    arithmetic = {"int8 dot", limits.int8_ops_per_s};
  }
  double const moving = work.bytes / memory.per_second;
  bool const measured = arithmetic.per_second > 0.0;
  double const computing = measured ? work.flops / arithmetic.per_second : 0.0;
  if (!(seconds > 0.0)) return {0.0, memory.name};
  return computing > moving ? share_of_limit{computing / seconds, arithmetic.name}
                            : share_of_limit{moving / seconds, memory.name};
}

}  // namespace moe64::cli
