#pragma once

#include "backend.hpp"
#include "core/fail.hpp"
#include "core/verbose.hpp"
#include "ops/describe.hpp"

#include <chrono>
#include <string>

namespace moe64 {

/// What an operation is called in messages, and where a backend keeps its implementations.
template <class Args>
struct operation_traits;

#define MOE64_OPERATION(operation)                    \
  template <>                                         \
  struct operation_traits<operation##_args> {         \
    static constexpr char const* name = #operation;   \
    static constexpr auto list = &backend::operation; \
  };
MOE64_OPERATION(quantize)
MOE64_OPERATION(dequantize)
MOE64_OPERATION(route)
MOE64_OPERATION(route_backward)
MOE64_OPERATION(plan)
MOE64_OPERATION(gather)
MOE64_OPERATION(combine)
MOE64_OPERATION(slot_weight_gradient)
MOE64_OPERATION(grouped_gemm)
MOE64_OPERATION(grouped_gemm_wgrad)
MOE64_OPERATION(activate)
MOE64_OPERATION(activate_backward)
#undef MOE64_OPERATION

template <>
struct operation_traits<layer_calls> {
  static constexpr char const* name = "layer";
  static constexpr auto list = &backend::layer;
};

/// The first implementation that accepts the call, or the one that the call forces; null, and why,
/// where there is none.
template <class Args>
[[nodiscard]] implementation<Args> const* first_taking(Args const& args, stream where,
                                                       std::string& refusals) {
  for (auto const& candidate : backend_of(where.device).*operation_traits<Args>::list) {
    bool const forced = args.implementation == candidate.name;
    if (!args.implementation.empty() && !forced) continue;
    support const answer = candidate.supports(args);
    if (answer) return &candidate;
    if (verbose_level() >= 2) {
      print_refused(operation_traits<Args>::name, where.device, candidate.name, answer.reason());
    }
    refusals +=
        fmt::format("{}{}: {}", refusals.empty() ? "" : "; ", candidate.name, answer.reason());
  }
  return nullptr;
}

template <class Args>
[[nodiscard]] implementation<Args> const& choose(Args const& args, stream where) {
  constexpr char const* operation = operation_traits<Args>::name;
  std::string refusals;
  if (auto const* const found = first_taking(args, where, refusals)) return *found;
  if (refusals.empty()) {
    fail(errc::unsupported, "[{}] there is no implementation '{}' on {}", operation,
         args.implementation, to_string(where.device));
  }
  fail(errc::unsupported, "[{}] no implementation on {} takes this call: {}", operation,
       to_string(where.device), refusals);
}

/// With its verbose line.
template <class Args>
void run_and_print(implementation<Args> const& chosen, Args const& args, stream where) {
  if (verbose_level() == 0) {
    chosen.run(args, where);
    return;
  }
  auto const begin = std::chrono::steady_clock::now();
  chosen.run(args, where);
  std::chrono::duration<double, std::milli> const taken = std::chrono::steady_clock::now() - begin;
  print_executed(operation_traits<Args>::name, where.device, chosen.name, describe(args),
                 taken.count());
}

/// Run a checked call.
template <class Args>
void dispatch(Args const& args, stream where) {
  run_and_print(choose(args, where), args, where);
}

}  // namespace moe64
