#include "timing.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace moe64::cli {

timing time_of(cases::problem_case& c, stream where, double min_seconds, progress_bar& bar) {
  using clock = std::chrono::steady_clock;
  index_t const least = std::max<index_t>(3, c.routings());
  constexpr index_t most = 100000;
  run(c, where);
  std::vector<double> seconds;
  double total = 0.0;
  while (std::ssize(seconds) < least || (total < min_seconds && std::ssize(seconds) < most)) {
    c.use_routing(std::ssize(seconds) % c.routings());
    auto const begin = clock::now();
    c.execute(where);
    seconds.push_back(std::chrono::duration<double>(clock::now() - begin).count());
    total += seconds.back();
    double const expected = min_seconds / total * static_cast<double>(std::ssize(seconds));
    bar.update(std::ssize(seconds), std::max(least, std::lround(std::min(expected, 1e6))));
  }
  c.use_routing(0);
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), std::ssize(seconds)};
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
  if (work.weight_bytes > 0.0) memory = {"read", limits.read_bytes_per_s};
  limit arithmetic{"multiply-add", limits.fma_flops_per_s};
  if (named("amx") && limits.bf16_tile_flops_per_s > 0.0) {
    arithmetic = {"bf16 tile", limits.bf16_tile_flops_per_s};
  } else if (named("bf16") && limits.bf16_flops_per_s > 0.0) {
    arithmetic = {"bf16 dot", limits.bf16_flops_per_s};
  } else if (named("vnni") && limits.int8_ops_per_s > 0.0) {
    arithmetic = {"int8 dot", limits.int8_ops_per_s};
  }
  double const moving = work.bytes / memory.per_second;
  double const computing = work.flops / arithmetic.per_second;
  if (!(seconds > 0.0)) return {0.0, memory.name};
  return computing > moving ? share_of_limit{computing / seconds, arithmetic.name}
                            : share_of_limit{moving / seconds, memory.name};
}

}  // namespace moe64::cli
