#include "ops/at_once.hpp"

#include "core/verbose.hpp"

#include <fmt/format.h>

#include <chrono>

namespace moe64 {
namespace {

std::string describe(layer_calls const& calls) {
  routing_plan const& plan = calls.plan.plan;
  return fmt::format("tokens={} hidden={} inter={} experts={} top_k={} mode=w8a8", plan.tokens,
                     calls.gate_up.weights.cols(), calls.down.weights.cols(), plan.experts,
                     plan.top_k);
}

}  // namespace

bool run_at_once(layer_calls const& calls, stream where) {
  for (auto const& candidate : backend_of(where.device).layer) {
    support const answer = candidate.supports(calls);
    if (!answer) {
      if (verbose_level() >= 2) {
        print_refused("layer", where.device, candidate.name, answer.reason());
      }
      continue;
    }
    auto const begin = std::chrono::steady_clock::now();
    candidate.run(calls, where);
    if (verbose_level() > 0) {
      std::chrono::duration<double, std::milli> const taken =
          std::chrono::steady_clock::now() - begin;
      print_executed("layer", where.device, candidate.name, describe(calls), taken.count());
    }
    return true;
  }
  return false;
}

}  // namespace moe64
