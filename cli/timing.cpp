#include "timing.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace moe64::cli {

timing time_of(cases::problem_case& c, stream where, double min_seconds, progress_bar& bar) {
  using clock = std::chrono::steady_clock;
  constexpr index_t least = 3;
  constexpr index_t most = 100000;
  run(c, where);
  std::vector<double> seconds;
  double total = 0.0;
  while (std::ssize(seconds) < least || (total < min_seconds && std::ssize(seconds) < most)) {
    auto const begin = clock::now();
    c.execute(where);
    seconds.push_back(std::chrono::duration<double>(clock::now() - begin).count());
    total += seconds.back();
    double const expected = min_seconds / total * static_cast<double>(std::ssize(seconds));
    bar.update(std::ssize(seconds), std::max(least, std::lround(std::min(expected, 1e6))));
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), std::ssize(seconds)};
}

share_of_limit share_of(cases::work const& work, double seconds, machine_limits const& limits) {
  double const compute = work.flops / limits.fma_flops_per_s;
  double const copy = work.bytes / limits.copy_bytes_per_s;
  if (!(seconds > 0.0)) return {0.0, "copy"};
  return compute > copy ? share_of_limit{compute / seconds, "multiply-add"}
                        : share_of_limit{copy / seconds, "copy"};
}

}  // namespace moe64::cli
