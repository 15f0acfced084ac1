#include "core/verbose.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace moe64 {

int verbose_level() noexcept {
  static int const level = [] {
    char const* const text = std::getenv("MOE64_VERBOSE");
    if (text == nullptr || text[0] < '0' || text[0] > '9' || text[1] != '\0') return 0;
    return text[0] - '0';
  }();
  return level;
}

void print_executed(char const* operation, moe64::device where, char const* implementation,
                    std::string const& problem, double milliseconds) {
  // One call per line, so that lines of several threads do not mix.
  std::fputs(fmt::format("moe64,exec,{},{},{},{},{:.3f}ms\n", operation, to_string(where),
                         implementation, problem, milliseconds)
                 .c_str(),
             stderr);
}

void print_launched(char const* operation, moe64::device where, char const* kernel, index_t ctas,
                    index_t threads, index_t shared_bytes) {
  std::fputs(fmt::format("moe64,launch,{},{},{},ctas={} threads={} shared={}\n", operation,
                         to_string(where), kernel, ctas, threads, shared_bytes)
                 .c_str(),
             stderr);
}

void print_mode(moe64::device where, std::string_view mode, std::string const& reason) {
  std::fputs(fmt::format("moe64,mode,layer,{},{},{}\n", to_string(where), mode, reason).c_str(),
             stderr);
}

void print_chosen(char const* operation, moe64::device where, char const* tile,
                  std::string const& reason) {
  std::fputs(
      fmt::format("moe64,tile,{},{},{},{}\n", operation, to_string(where), tile, reason).c_str(),
      stderr);
}

void print_refused(char const* operation, moe64::device where, char const* implementation,
                   std::string const& reason) {
  std::fputs(fmt::format("moe64,refused,{},{},{},{}\n", operation, to_string(where), implementation,
                         reason)
                 .c_str(),
             stderr);
}

}  // namespace moe64
