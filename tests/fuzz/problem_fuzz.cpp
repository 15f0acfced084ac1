// Any text is either a problem, whose printed form reads back as the same problem, or a typed
// error.

#include "moe64/problem.hpp"

#include "moe64/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const line(reinterpret_cast<char const*>(data), size);
  std::string printed;
  try {
    printed = moe64::to_string(moe64::parse_problem(line));
  } catch (moe64::error const&) {
    return 0;
  }
  if (moe64::to_string(moe64::parse_problem(printed)) != printed) std::abort();
  return 0;
}
