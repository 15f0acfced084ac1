#include "whole_file.hpp"

#include "fmt/format.h"
#include "moe64/error.hpp"
#include "terminal.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace moe64::cli {
namespace {

/// So much of a file is looked at to know it again.
constexpr std::size_t head_bytes = std::size_t{1} << 20;

/// 0, or the reason.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    ssize_t const done = ::write(descriptor, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return 0;
}

std::string real_path(std::string const& path) {
  char* const found = ::realpath(path.c_str(), nullptr);
  std::string result = found == nullptr ? path : found;
  std::free(found);
  return result;
}

}  // namespace

whole_file::whole_file(std::string path, std::string option, recogniser is_ours)
    : path_(std::move(path)), option_(std::move(option)), target_(path_) {
  struct stat found = {};
  if (::stat(path_.c_str(), &found) == 0) {
    if (S_ISDIR(found.st_mode)) refuse(path_, "writing", EISDIR);
    if (!S_ISREG(found.st_mode)) {
      descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
      if (descriptor_ < 0) refuse(path_, "opening", errno);
      return;
    }
    target_ = real_path(path_);
    replace_ = true;
    require_ours(is_ours);
  } else if (errno != ENOENT) {
    refuse(path_, "opening", errno);
  } else if (::lstat(path_.c_str(), &found) == 0) {
    refuse(path_, "a link to a file that is not there", ENOENT);
  }
  partial_ = fmt::format("{}.partial-{}", target_, ::getpid());
  descriptor_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) refuse(std::exchange(partial_, {}), "creating", errno);
}

whole_file::~whole_file() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void whole_file::refuse(std::string const& path, char const* what, int reason) const {
  throw error(errc::io_failure,
              fmt::format("[{}] {}: {}: {}", option_, path, what, std::strerror(reason)));
}

void whole_file::require_ours(recogniser is_ours) const {
  int const descriptor = ::open(target_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) refuse(target_, "reading what is there", errno);
  std::string head(head_bytes, '\0');
  std::size_t filled = 0;
  ssize_t got = 0;
  do {
    got = ::read(descriptor, head.data() + filled, head.size() - filled);
    if (got > 0) filled += static_cast<std::size_t>(got);
  } while (got > 0 || (got < 0 && errno == EINTR));
  int const reason = errno;
  ::close(descriptor);
  if (got < 0) refuse(target_, "reading what is there", reason);
  head.resize(filled);
  if (head.empty() || is_ours(head)) return;
  throw error(errc::invalid_argument,
              fmt::format("[{}] {}: is there, and was not written by {}: it is not overwritten; "
                          "move it elsewhere or choose another name",
                          option_, path_, option_));
}

void whole_file::write(std::string_view text) {
  int reason = write_all(descriptor_, text);
  if (reason == 0 && !partial_.empty() && ::fsync(descriptor_) != 0) reason = errno;
  if (::close(std::exchange(descriptor_, -1)) != 0 && reason == 0) reason = errno;
  if (reason != 0) refuse(path_, "writing", reason);
  if (!partial_.empty()) give_name();
}

/// What has appeared under the name meanwhile stays.
void whole_file::give_name() {
  if (!replace_) {
    if (::link(partial_.c_str(), target_.c_str()) == 0) return;  // the other name goes with this
    if (errno == EEXIST) refuse(path_, "giving the file its name", EEXIST);
    // a file system without hard links
  }
  if (std::rename(partial_.c_str(), target_.c_str()) != 0) {
    refuse(path_, "giving the file its name", errno);
  }
  partial_.clear();
}

}  // namespace moe64::cli
