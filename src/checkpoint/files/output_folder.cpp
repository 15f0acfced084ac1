#include "checkpoint/files/output_folder.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/safetensors/tensor_name.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <errno.h>
#include <utility>
#include <vector>

namespace moe64::checkpoint {
namespace {

[[noreturn]] void refuse(std::string const& path, std::string_view what, int result) {
  fail(errc::io_failure, "[write] {}: {}: {}", escaped_path(path), what, error_text(-result));
}

void sync_folder(file_system const& files, std::string const& path) {
  int const descriptor = files.open_folder(path);
  if (descriptor < 0) refuse(path, "opening the folder", descriptor);
  int const result = files.sync(descriptor);
  files.close(descriptor);
  if (result < 0) refuse(path, "making it permanent (fsync)", result);
}

}  // namespace

std::string parent_of(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  std::size_t const slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, std::max<std::size_t>(slash, 1));
}

output_folder::output_folder(file_system const& files, std::string path)
    : files_(files), path_(std::move(path)) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  int const made = files_.make_folder(path_);
  if (made < 0 && made != -EEXIST) refuse(path_, "making the folder", made);
  if (made >= 0) sync_folder(files_, parent_of(path_));
  if (int const result = files_.path_status(path_, true, status_); result < 0) {
    refuse(path_, "asking for its status", result);
  }
  if (status_.kind != file_kind::folder) {
    fail(errc::io_failure, "[write] {}: is {}, expected a folder", escaped_path(path_),
         status_.kind == file_kind::regular ? "a file" : "a FIFO, socket or device");
  }
  try {
    acquire();
  } catch (...) {
    if (lock_ >= 0) files_.close(lock_);
    throw;
  }
}

void output_folder::acquire() {
  std::string const lock_path = path_of(lock_name);
  lock_ = files_.open_or_create(lock_path);
  if (lock_ < 0) refuse(lock_path, "opening the lock", lock_);
  int const locked = files_.lock(lock_);
  // A writer that ends removes its lock file: what was locked must still be what the name means.
  file_status held;
  file_status named;
  bool const taken =
      locked == -EWOULDBLOCK ||
      (locked >= 0 && (files_.status(lock_, held) < 0 ||
                       files_.path_status(lock_path, false, named) < 0 || !held.same_file(named)));
  if (taken) {
    fail(errc::io_failure, "[write] {}: another process is writing to this folder",
         escaped_path(path_));
  }
  if (locked < 0) refuse(lock_path, "locking", locked);
}

output_folder::~output_folder() {
  files_.unlink(path_of(lock_name));
  files_.close(lock_);
}

std::string output_folder::path_of(std::string_view name) const {
  if (std::string_view const problem = file_name_problem(name); !problem.empty()) {
    fail(errc::invalid_argument, "[write] the file name {} {}", quoted(name), problem);
  }
  return path_ + "/" + std::string(name);
}

void output_folder::refuse_input(file_status const& input, std::string_view name) const {
  bool same = status_.same_file(input);
  std::vector<std::string> names;
  if (!same && input.kind == file_kind::regular) {
    if (int const result = files_.list_folder(path_, names); result < 0) {
      refuse(path_, "listing the folder", result);
    }
  }
  for (std::string const& other : names) {
    file_status status;
    same = same ||
           (files_.path_status(path_ + "/" + other, true, status) >= 0 && status.same_file(input));
  }
  if (same) {
    fail(errc::invalid_argument, "[write] {}: is, or holds, the input {}", escaped_path(path_),
         quoted(name));
  }
}

void output_folder::sync() const { sync_folder(files_, path_); }

}  // namespace moe64::checkpoint
