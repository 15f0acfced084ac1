#pragma once

#include "verbs.hpp"

#include <string>
#include <vector>

namespace moe64::cli {

/// Whether results were asked for as JSON: then so are failures.
[[nodiscard]] bool json_asked(std::vector<std::string> const& words);

/// Says on standard error why the tool ends without a result; as JSON also on standard output, in
/// the place of the result: {"ok": false, "error": ..., "message": ..., "exit_code": ...}.
void report_failure(refusal const& failure, bool as_json);

}  // namespace moe64::cli
