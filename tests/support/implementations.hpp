#pragma once

#include "support/target.hpp"

#include <gtest/gtest.h>

namespace moe64::test {

/// body(args) once for every implementation that takes the call, forced to it; a failure if none
/// does.
template <class Args, class Body>
void for_each_implementation(Args args, Body const& body, target_stream where = target()) {
  bool any = false;
  for (implementation_report const& report : explain(args, where)) {
    if (!report.answer) continue;
    any = true;
    SCOPED_TRACE("implementation " + report.name);
    args.implementation = report.name;
    body(static_cast<Args const&>(args));
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_TRUE(any) << "no implementation takes the call";
}

}  // namespace moe64::test
