#include "whole_file.hpp"

#include "fmt/format.h"
#include "moe64/error.hpp"
#include "terminal.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace moe64::cli {
namespace {

[[noreturn]] void refuse(std::string const& path, char const* what) {
  throw error(errc::io_failure,
              fmt::format("[report] {}: {}: {}", printable(path), what, std::strerror(errno)));
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    ssize_t const done = ::write(descriptor, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return true;
}

}  // namespace

void write_whole_file(std::string const& path, std::string_view text) {
  std::string const partial = fmt::format("{}.partial-{}", path, ::getpid());
  int const descriptor = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) refuse(partial, "creating");
  bool good = write_all(descriptor, text) && ::fsync(descriptor) == 0;
  int reason = errno;
  if (::close(descriptor) != 0 && good) {
    good = false;
    reason = errno;
  }
  if (good && std::rename(partial.c_str(), path.c_str()) != 0) {
    good = false;
    reason = errno;
  }
  if (good) return;
  ::unlink(partial.c_str());
  errno = reason;
  refuse(path, "writing");
}

}  // namespace moe64::cli
