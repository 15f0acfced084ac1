#include "checkpoint/files/input_file.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <cstring>
#include <errno.h>
#include <utility>

namespace moe64::checkpoint {
namespace {

constexpr index_t piece_bytes = index_t{16} << 20;

/// ../../blobs/NAME: what the Hub cache puts into snapshots/REVISION/.
bool is_hub_link(std::string_view target) {
  constexpr std::string_view start = "../../blobs/";
  if (!target.starts_with(start)) return false;
  target.remove_prefix(start.size());
  return !target.empty() && target != "." && target != ".." &&
         target.find('/') == std::string_view::npos;
}

[[noreturn]] void refuse(std::string const& path, std::string_view what, int error_number) {
  fail(errc::io_failure, "[read] {}: {}: {}", escaped_path(path), what, error_text(error_number));
}

int open_retrying(file_system const& files, std::string const& path, bool follow) {
  int result = 0;
  do {
    result = files.open_read(path, follow);
  } while (result == -EINTR);
  return result;
}

/// The descriptor of a link's target, where the rule allows the link.
int open_link(file_system const& files, std::string const& path, link_rule links) {
  if (links == link_rule::any) return open_retrying(files, path, true);
  std::string target;
  if (int const result = files.read_link(path, target); result < 0) {
    refuse(path, "reading the link", -result);
  }
  if (links == link_rule::none || !is_hub_link(target)) {
    fail(errc::io_failure, "[read] {}: is a symbolic link to {}; {}", escaped_path(path),
         quoted(target),
         links == link_rule::none ? "links are not followed here"
                                  : "only links of the Hub cache (../../blobs/NAME) are followed, "
                                    "others with follow_links (--follow-links)");
  }
  // The target itself is opened, so that a link that is replaced meanwhile changes nothing.
  std::size_t const slash = path.rfind('/');
  std::string const base = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  int const result = open_retrying(files, base + target, false);
  if (result == -ELOOP) {
    fail(errc::io_failure,
         "[read] {}: links to {}, which is a link itself; such links are followed "
         "with follow_links (--follow-links)",
         escaped_path(path), quoted(target));
  }
  if (result == -ENOENT) {
    fail(errc::io_failure, "[read] {}: links to {}, which does not exist", escaped_path(path),
         quoted(target));
  }
  return result;
}

}  // namespace

std::optional<input_file> input_file::open_if_present(file_system const& files,
                                                      std::string const& path, link_rule links) {
  input_file file(files, path);
  file.descriptor_ = open_retrying(files, path, false);
  if (file.descriptor_ == -ENOENT) return std::nullopt;
  if (file.descriptor_ == -ELOOP) file.descriptor_ = open_link(files, path, links);
  if (file.descriptor_ < 0) refuse(path, "opening", -file.descriptor_);
  if (int const result = files.status(file.descriptor_, file.status_); result < 0) {
    refuse(path, "asking for its status", -result);
  }
  if (file.status_.kind != file_kind::regular) {
    fail(errc::io_failure, "[read] {}: is {}, expected a regular file", escaped_path(path),
         file.status_.kind == file_kind::folder ? "a folder" : "a FIFO, socket or device");
  }
  return file;
}

input_file input_file::open(file_system const& files, std::string const& path, link_rule links) {
  std::optional<input_file> file = open_if_present(files, path, links);
  if (!file) refuse(path, "opening", ENOENT);
  return std::move(*file);
}

input_file::input_file(input_file&& other) noexcept
    : files_(other.files_),
      path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      status_(other.status_),
      mapping_(std::exchange(other.mapping_, nullptr)) {}

input_file& input_file::operator=(input_file&& other) noexcept {
  if (this != &other) {
    close();
    files_ = other.files_;
    path_ = std::move(other.path_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    status_ = other.status_;
    mapping_ = std::exchange(other.mapping_, nullptr);
  }
  return *this;
}

input_file::~input_file() { close(); }

void input_file::close() noexcept {
  if (mapping_ != nullptr) files_->unmap(mapping_, status_.bytes);
  if (descriptor_ >= 0) files_->close(descriptor_);
  mapping_ = nullptr;
  descriptor_ = -1;
}

void input_file::check_range(index_t offset, index_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > status_.bytes || bytes > status_.bytes - offset) {
    fail(errc::invalid_argument, "[read] {}: bytes {} + {} are outside of its {} bytes",
         escaped_path(path_), offset, bytes, status_.bytes);
  }
}

void input_file::check_size() const {
  file_status now;
  if (int const result = files_->status(descriptor_, now); result < 0) {
    refuse(path_, "asking for its status", -result);
  }
  if (now.bytes != status_.bytes) {
    fail(errc::io_failure, "[read] {}: had {} bytes when it was opened and has {} now",
         escaped_path(path_), status_.bytes, now.bytes);
  }
}

index_t input_file::read_piece(std::span<std::byte> into, index_t offset) const {
  if (!is_mapped()) return files_->read_at(descriptor_, into, offset);
  check_size();
  index_t const got = files_->copy_mapped(mapping_ + offset, into);
  // Containers may forbid the call; reading the file is never forbidden.
  if (got == -EPERM || got == -ENOSYS) return files_->read_at(descriptor_, into, offset);
  check_size();
  return got;
}

void input_file::read(index_t offset, std::span<std::byte> into) const {
  check_range(offset, static_cast<index_t>(into.size()));
  while (!into.empty()) {
    std::size_t const wanted = std::min(into.size(), static_cast<std::size_t>(piece_bytes));
    index_t const got = read_piece(into.first(wanted), offset);
    if (got == -EINTR) continue;
    if (got < 0) {
      fail(errc::io_failure, "[read] {}: reading {} bytes at {}: {}", escaped_path(path_), wanted,
           offset, error_text(static_cast<int>(-got)));  // narrow-ok: an errno
    }
    if (got == 0) {
      fail(errc::io_failure, "[read] {}: ends at byte {}, but had {} bytes when it was opened",
           escaped_path(path_), offset, status_.bytes);
    }
    into = into.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

void input_file::map() {
  if (is_mapped() || status_.bytes == 0) return;
  check_size();
  if (int const result = files_->map(descriptor_, status_.bytes, mapping_); result < 0) {
    mapping_ = nullptr;
    refuse(path_, "mapping", -result);
  }
}

void input_file::check_unchanged() const {
  check_size();
  file_status now;
  if (int const result = files_->status(descriptor_, now); result < 0) {
    refuse(path_, "asking for its status", -result);
  }
  if (now != status_) {
    fail(errc::io_failure, "[read] {}: was modified after it was opened", escaped_path(path_));
  }
}

std::string input_file::read_text(index_t limit) const {
  if (bytes() > limit) {
    fail(errc::malformed_file, "[read] {}: has {} bytes, more than {}", escaped_path(path_),
         bytes(), limit);
  }
  std::string text(static_cast<std::size_t>(bytes()), '\0');
  read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace moe64::checkpoint
