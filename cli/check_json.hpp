#pragma once

#include "moe64/check.hpp"
#include "nlohmann/json.hpp"

namespace moe64::cli {

/// Everything in the report, experts included.
[[nodiscard]] nlohmann::ordered_json to_json(check_report const& report);
[[nodiscard]] nlohmann::ordered_json to_json(check_totals const& totals);

}  // namespace moe64::cli
