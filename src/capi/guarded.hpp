#pragma once

#include "moe64/c/status.h"

namespace moe64::capi {

/// The status of the exception being handled, its message kept for moe64_last_error(). Only inside
/// a catch block.
[[nodiscard]] moe64_status report_current_exception() noexcept;

/// Runs the body of a C function: no exception leaves it.
template <class Body>
[[nodiscard]] moe64_status guarded(Body&& body) noexcept {
  try {
    body();
    return MOE64_OK;
  } catch (...) {
    return report_current_exception();
  }
}

}  // namespace moe64::capi
