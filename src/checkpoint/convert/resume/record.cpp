#include "checkpoint/convert/resume/record.hpp"

#include "checkpoint/convert/resume/manifest.hpp"
#include "checkpoint/files/checksum.hpp"
#include "checkpoint/files/input_file.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <errno.h>
#include <optional>
#include <set>

namespace moe64::checkpoint {
namespace {

constexpr index_t piece_bytes = index_t{1} << 20;

/// Whether the file begins as the record says; one that was recorded whole has to be it whole.
bool is_as_recorded(file_system const& files, std::string const& path, file_record const& record) {
  auto const file = input_file::open_if_present(files, path, link_rule::none);
  bool const whole = record.head_bytes == record.bytes;
  if (!file || file->bytes() < record.head_bytes) return false;
  if (whole && file->bytes() != record.bytes) return false;
  checksum sum;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(piece_bytes, record.head_bytes)));
  for (index_t at = 0; at < record.head_bytes; at += piece_bytes) {
    index_t const count = std::min(piece_bytes, record.head_bytes - at);
    auto const piece = std::span(buffer).first(static_cast<std::size_t>(count));
    file->read(at, piece);
    sum.add(piece);
  }
  return sum.value() == record.head;
}

std::vector<std::string> names_in(file_system const& files, std::string const& folder) {
  std::vector<std::string> names;
  int const result = files.list_folder(folder, names);
  if (result < 0 && result != -ENOENT) {
    fail(errc::io_failure, "[convert] {}: listing the folder: {}", escaped_path(folder),
         error_text(-result));
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Empty when there is no such file any more.
std::optional<file_status> status_of(file_system const& files, std::string const& path) {
  file_status status;
  int const result = files.path_status(path, false, status);
  if (result == -ENOENT) return std::nullopt;
  if (result < 0) {
    fail(errc::io_failure, "[convert] {}: asking for its status: {}", escaped_path(path),
         error_text(-result));
  }
  return status;
}

}  // namespace

file_record record_of(std::string_view name, std::span<std::byte const> head) {
  checksum sum;
  sum.add(head);
  auto const bytes = static_cast<index_t>(head.size());
  return {std::string(name), bytes, bytes, sum.value()};
}

bool output_survey::has_written(std::string_view name) const noexcept {
  return std::any_of(written.begin(), written.end(),
                     [&](file const& known) { return known.name == name; });
}

output_survey survey_output(file_system const& files, std::string const& folder,
                            earlier_run const* earlier) {
  output_survey found;
  std::set<std::string> partial;
  if (earlier != nullptr) {
    for (std::string const& name : earlier->outputs) partial.insert(partial_name(name));
  }
  for (std::string const& name : names_in(files, folder)) {
    if (name == lock_name || (earlier != nullptr && name == manifest_name)) continue;
    if (name == partial_name(manifest_name)) continue;  // replaced by the next manifest
    std::string const path = folder + "/" + name;
    auto const status = status_of(files, path);
    if (!status) continue;
    bool const regular = status->kind == file_kind::regular;
    file_record const* const record = earlier == nullptr ? nullptr : earlier->file(name);
    if (regular && partial.contains(name)) {
      found.partial.push_back({name, status->bytes});
    } else if (regular && record != nullptr && is_as_recorded(files, path, *record)) {
      found.written.push_back({name, status->bytes});
    } else {
      found.foreign.push_back(name);
    }
  }
  return found;
}

}  // namespace moe64::checkpoint
