#include "checkpoint/files/output_file.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <errno.h>
#include <vector>

namespace moe64::checkpoint {
namespace {

constexpr std::size_t piece_bytes = std::size_t{16} << 20;

}  // namespace

std::string partial_name(std::string_view name) {
  std::string_view const prefix = name.starts_with(".moe64") ? "" : ".moe64-";
  return fmt::format("{}{}.partial", prefix, name);
}

output_file::output_file(output_folder const& folder, std::string_view name, index_t bytes,
                         bool replace)
    : folder_(folder),
      path_(folder.path_of(name)),
      partial_path_(folder.path_of(partial_name(name))),
      bytes_(bytes),
      replace_(replace) {
  file_system const& files = folder_.files();
  require_free_name();
  // The lock of the folder says that nobody else is writing this one.
  if (int const gone = files.unlink(partial_path_); gone < 0 && gone != -ENOENT) {
    refuse("removing an older partial file", gone);
  }
  descriptor_ = files.create_exclusive(partial_path_);
  if (descriptor_ < 0) refuse("creating the partial file", descriptor_);
  try {
    reserve();
  } catch (...) {
    files.close(descriptor_);
    files.unlink(partial_path_);
    throw;
  }
}

output_file::~output_file() {
  if (descriptor_ >= 0) folder_.files().close(descriptor_);
  if (!finished_) folder_.files().unlink(partial_path_);
}

void output_file::refuse(std::string_view what, index_t result) const {
  fail(errc::io_failure, "[write] {}: {} ({} bytes): {}", escaped_path(path_), what, bytes_,
       error_text(static_cast<int>(-result)));  // narrow-ok: an errno
}

void output_file::require_free_name() const {
  file_status existing;
  int const found = folder_.files().path_status(path_, false, existing);
  if (found == -ENOENT) return;
  if (found < 0) refuse("asking for its status", found);
  if (!replace_) fail(errc::invalid_argument, "[write] {}: is already there", escaped_path(path_));
  if (existing.kind != file_kind::regular) {
    fail(errc::invalid_argument, "[write] {}: is there, and not a regular file",
         escaped_path(path_));
  }
}

void output_file::reserve() {
  if (bytes_ == 0) return;
  int result = 0;
  do {
    result = folder_.files().allocate(descriptor_, bytes_);
  } while (result == -EINTR);
  if (result == -EOPNOTSUPP || result == -ENOSYS) {
    // This file system cannot reserve; the size is set, and a full disk shows when writing.
    result = folder_.files().set_size(descriptor_, bytes_);
  }
  if (result < 0) refuse("reserving its space", result);
}

void output_file::write(index_t offset, std::span<std::byte const> from) {
  auto const count = static_cast<index_t>(from.size());
  if (offset < 0 || offset > bytes_ || count > bytes_ - offset) {
    fail(errc::invalid_argument, "[write] {}: bytes {} + {} of {}", escaped_path(path_), offset,
         count, bytes_);
  }
  while (!from.empty()) {
    auto const piece = from.first(std::min(from.size(), piece_bytes));
    index_t const written = folder_.files().write_at(descriptor_, piece, offset);
    if (written == -EINTR) continue;
    if (written < 0) refuse("writing", written);
    if (written == 0) refuse("writing made no progress", -EIO);
    from = from.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
}

void output_file::read(index_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    auto const piece = into.first(std::min(into.size(), piece_bytes));
    index_t const got = folder_.files().read_at(descriptor_, piece, offset);
    if (got == -EINTR) continue;
    if (got < 0) refuse("reading back", got);
    if (got == 0) refuse("reading back: it ends early", -EIO);
    into = into.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

void output_file::finish(std::function<void()> const& verify) {
  file_system const& files = folder_.files();
  // Not tried again when it fails: the system may have dropped the pages that it could not write.
  if (int const result = files.sync(descriptor_); result < 0) {
    refuse("making it permanent (fsync)", result);
  }
  file_status status;
  if (int const result = files.status(descriptor_, status); result < 0) {
    refuse("asking for its status", result);
  }
  if (status.bytes != bytes_) {
    fail(errc::io_failure, "[write] {}: has {} bytes after writing {}", escaped_path(path_),
         status.bytes, bytes_);
  }
  verify();
  int const closed = files.close(descriptor_);
  descriptor_ = -1;
  if (closed < 0) refuse("closing", closed);
  require_free_name();  // writing may have taken hours
  if (int const result = files.rename(partial_path_, path_); result < 0) {
    refuse("giving it its name", result);
  }
  finished_ = true;
  folder_.sync();
}

void write_file(output_folder const& folder, std::string_view name,
                std::span<std::byte const> bytes, bool replace,
                std::function<void()> const& before_name) {
  output_file file(folder, name, static_cast<index_t>(bytes.size()), replace);
  file.write(0, bytes);
  file.finish([&] {
    std::vector<std::byte> back(bytes.size());
    file.read(0, back);
    if (!std::equal(back.begin(), back.end(), bytes.begin())) {
      fail(errc::io_failure, "[write] {}: what was read back is not what was written",
           escaped_path(file.path()));
    }
    if (before_name) before_name();
  });
}

}  // namespace moe64::checkpoint
