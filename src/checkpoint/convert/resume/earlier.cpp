#include "checkpoint/convert/resume/earlier.hpp"

#include "checkpoint/convert/files.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <errno.h>

namespace moe64::checkpoint {
namespace {

constexpr std::size_t names_shown = 6;

std::string listed(std::vector<std::string> const& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), names_shown); ++i) {
    text += (i == 0 ? "" : ", ") + quoted(names[i]);
  }
  if (names.size() > names_shown) text += fmt::format(" and {} more", names.size() - names_shown);
  return text;
}

}  // namespace

earlier_output::earlier_output(file_system const& files, std::string const& folder,
                               conversion_identity const& identity,
                               std::vector<std::string> const& outputs,
                               std::vector<std::string>& notes) {
  std::optional<earlier_run> earlier = read_manifest(files, folder);
  survey_ = survey_output(files, folder, earlier ? &*earlier : nullptr);
  if (!earlier) {
    if (survey_.foreign.empty()) return;
    fail(errc::invalid_argument,
         "[convert] {}: is not empty (it has {}), and no conversion was begun there",
         escaped_path(folder), quoted(survey_.foreign.front()));
  }
  run_ = std::move(*earlier);
  changed_ = identity.difference(run_.identity);
  if (!changed_.empty() && run_.complete) {
    fail(errc::invalid_argument,
         "[convert] {}: holds a finished conversion, and the {} changed since; remove it or choose "
         "another folder",
         escaped_path(folder), changed_);
  }
  std::vector<std::string> in_the_way = survey_.foreign;
  if (changed_.empty()) {
    std::erase_if(in_the_way, [&](std::string const& name) {
      return !describes_tensors(name) &&
             std::find(outputs.begin(), outputs.end(), name) == outputs.end();
    });
  }
  if (!in_the_way.empty()) {
    fail(errc::invalid_argument,
         "[convert] {}: {}: not what a conversion wrote there, so neither replaced nor removed; "
         "move it elsewhere or choose another folder",
         escaped_path(folder), listed(in_the_way));
  }
  if (!survey_.foreign.empty()) {
    notes.push_back(
        fmt::format("left alone, as not of this conversion: {}", listed(survey_.foreign)));
  }
  if (changed_.empty()) return;
  notes.push_back(fmt::format("the {} changed since the last run: started over", changed_));
}

shard_record const* earlier_output::shard(std::string_view name) const noexcept {
  if (!changed_.empty()) return nullptr;
  auto const found =
      std::find_if(run_.shards.begin(), run_.shards.end(),
                   [&](shard_record const& record) { return record.file.name == name; });
  return found == run_.shards.end() ? nullptr : &*found;
}

index_t earlier_output::bytes_that_make_way() const noexcept {
  index_t bytes = 0;
  for (auto const& file : survey_.partial) bytes += file.bytes;
  if (changed_.empty()) return bytes;
  for (auto const& file : survey_.written) bytes += file.bytes;
  return bytes;
}

void earlier_output::remove_outdated(output_folder const& out) {
  if (changed_.empty()) return;
  for (auto const* const list : {&survey_.written, &survey_.partial}) {
    for (auto const& file : *list) {
      std::string const path = out.path_of(file.name);
      int const result = out.files().unlink(path);
      if (result < 0 && result != -ENOENT) {
        fail(errc::io_failure, "[convert] {}: removing: {}", escaped_path(path),
             error_text(-result));
      }
    }
  }
  *this = {};
}

}  // namespace moe64::checkpoint
