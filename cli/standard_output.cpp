#include "standard_output.hpp"

#include "moe64/error.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace moe64::cli {
namespace {

bool sent = false;  // of the process, as standard output is

}  // namespace

bool result_was_sent() noexcept { return sent; }

void occupy_standard_descriptors() {
  for (int const descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one. Opened the wrong way round: what uses it fails.
    int const mode = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    static_cast<void>(::open("/dev/null", mode));
  }
}

std::string output_failure() {
  bool const failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0) return std::string("standard output: ") + std::strerror(errno);
  return failed_before ? "standard output: could not be written" : "";
}

void flush_output() {
  if (std::string const why = output_failure(); !why.empty()) throw error(errc::io_failure, why);
  sent = true;
}

}  // namespace moe64::cli
