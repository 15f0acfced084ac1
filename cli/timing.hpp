#pragma once

#include "cases/problem_case.hpp"
#include "machine.hpp"
#include "progress.hpp"

#include <string>

namespace moe64::cli {

struct timing {
  double median = 0.0;  ///< seconds of one execution
  double fastest = 0.0;
  index_t runs = 0;
};

/// One execution to warm up, then at least three, until min_seconds have passed.
[[nodiscard]] timing time_of(cases::problem_case& c, stream where, double min_seconds,
                             progress_bar& bar);

/// How close a time is to the least that the machine's limits allow.
struct share_of_limit {
  double share = 0.0;
  std::string limit;  ///< the one that binds: "copy" or "multiply-add"
};
[[nodiscard]] share_of_limit share_of(cases::work const& work, double seconds,
                                      machine_limits const& limits);

}  // namespace moe64::cli
