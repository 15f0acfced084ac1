#include "failure.hpp"

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include <algorithm>
#include <cstdio>

namespace moe64::cli {

bool json_asked(std::vector<std::string> const& words) {
  auto const end = std::find(words.begin(), words.end(), "--");
  return std::find(words.begin(), end, "--json") != end;
}

void report_failure(refusal const& failure, bool as_json) {
  using json = nlohmann::ordered_json;
  fmt::print(stderr, "moe64: {}\n", failure.message);
  if (!as_json) return;
  json object;
  object["ok"] = false;
  object["error"] = failure.name;
  object["message"] = failure.message;
  object["exit_code"] = static_cast<int>(failure.code);
  // not fmt::print, which throws: standard output may be what has failed
  std::string const line = object.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
  std::fputs(line.c_str(), stdout);
}

}  // namespace moe64::cli
