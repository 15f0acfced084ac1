#include "checkpoint/files/folder_files.hpp"

#include "checkpoint/files/input_file.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/safetensors/tensor_name.hpp"
#include "core/fail.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace moe64::checkpoint {
namespace {

constexpr std::string_view usual_index = "model.safetensors.index.json";
constexpr std::string_view usual_file = "model.safetensors";

std::string listed(std::vector<std::string> const& names) {
  constexpr std::size_t shown = 6;
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < std::min(names.size(), shown); ++i) {
    parts.push_back(quoted(names[i], 80));
  }
  if (names.size() > shown) parts.push_back(fmt::format("{} more", names.size() - shown));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> names_ending(std::vector<std::string> const& names,
                                      std::string_view ending) {
  std::vector<std::string> result;
  for (std::string const& name : names) {
    if (name.ends_with(ending)) result.push_back(name);
  }
  return result;
}

bool contains(std::vector<std::string> const& names, std::string_view name) {
  return std::binary_search(names.begin(), names.end(), name);
}

std::string choose_index(std::string const& base, std::vector<std::string> const& indices,
                         open_options const& options, std::vector<finding>& warnings) {
  if (!options.index_name.empty()) {
    std::string_view const problem = file_name_problem(options.index_name);
    if (!problem.empty()) {
      fail(errc::invalid_argument, "[open] the name of the index, {}, {}",
           quoted(options.index_name), problem);
    }
    return options.index_name;
  }
  if (indices.empty()) return {};
  if (indices.size() == 1) return indices.front();
  if (!contains(indices, usual_index)) {
    fail(errc::invalid_argument, "[open] {}: has several indices, choose one: {}",
         escaped_path(base), listed(indices));
  }
  warnings.push_back(file_warning("other-index", "{}: {} is used, of {}", escaped_path(base),
                                  usual_index, listed(indices)));
  return std::string(usual_index);
}

/// A numbered set is whole when each number from 1 to its count is there.
void check_whole(std::string const& base, std::vector<std::string> const& set) {
  index_t const count = parse_shard_file_name(set.front())->count;
  std::vector<bool> seen(set.size(), false);
  bool whole = count == static_cast<index_t>(set.size());
  for (std::string const& name : set) {
    auto const parsed = parse_shard_file_name(name);
    whole = whole && parsed->count == count && parsed->number >= 1 && parsed->number <= count;
    if (!whole) break;
    seen[static_cast<std::size_t>(parsed->number - 1)] = true;
  }
  if (!whole || std::find(seen.begin(), seen.end(), false) != seen.end()) {
    fail(errc::malformed_file, "[open] {}: {} of {} numbered shards, and no index: {}",
         escaped_path(base), set.size(), count, listed(set));
  }
}

std::vector<std::string> choose_without_index(std::string const& base,
                                              std::vector<std::string> const& tensors,
                                              std::vector<finding>& warnings) {
  if (contains(tensors, usual_file)) return {std::string(usual_file)};
  std::map<std::string, std::vector<std::string>> sets;
  for (std::string const& name : tensors) {
    auto const parsed = parse_shard_file_name(name);
    if (parsed) sets[std::string(parsed->stem)].push_back(name);
  }
  if (sets.empty()) {
    if (tensors.size() > 1) {
      warnings.push_back(file_warning("no-index", "{}: no index; {} files are taken together",
                                      escaped_path(base), tensors.size()));
    }
    return tensors;
  }
  std::vector<std::string> const& set = sets.begin()->second;
  if (sets.size() > 1 || set.size() != tensors.size()) {
    fail(errc::invalid_argument, "[open] {}: no index, and more than one set of files: {}",
         escaped_path(base), listed(tensors));
  }
  check_whole(base, set);
  warnings.push_back(file_warning("no-index", "{}: no index; the {} shards are taken together",
                                  escaped_path(base), set.size()));
  return set;
}

void report_unused(std::string const& base, std::vector<std::string> const& tensors,
                   chosen_files& chosen) {
  std::vector<std::string> unused;
  for (std::string const& name : tensors) {
    if (!contains(chosen.shards, name)) unused.push_back(name);
  }
  if (!unused.empty()) {
    chosen.warnings.push_back(file_warning("extra-file", "{}: not part of this checkpoint: {}",
                                           escaped_path(base), listed(unused)));
  }
  for (std::string const& name : chosen.shards) {
    auto const parsed = parse_shard_file_name(name);
    if (parsed && parsed->count != static_cast<index_t>(chosen.shards.size())) {
      chosen.warnings.push_back(
          file_warning("shard-count", "{}: {} is one of {}, but {} files are used",
                       escaped_path(base), quoted(name), parsed->count, chosen.shards.size()));
      break;
    }
  }
}

}  // namespace

chosen_files choose_files(file_system const& files, std::string const& base,
                          open_options const& options) {
  std::vector<std::string> names;
  if (int const result = files.list_folder(base, names); result < 0) {
    fail(errc::io_failure, "[open] {}: listing the folder: {}", escaped_path(base),
         error_text(-result));
  }
  std::sort(names.begin(), names.end());
  std::vector<std::string> const tensors = names_ending(names, ".safetensors");
  chosen_files chosen;
  chosen.index_name =
      choose_index(base, names_ending(names, ".safetensors.index.json"), options, chosen.warnings);
  if (!chosen.index_name.empty()) {
    std::string const path = base + chosen.index_name;
    index_options const limits{.max_tensors = options.max_tensors};
    std::string const text =
        input_file::open(files, path, options.links).read_text(limits.max_bytes);
    chosen.index = shard_index::parse(text, path, limits);
    chosen.shards.assign(chosen.index->files().begin(), chosen.index->files().end());
    std::vector<finding> const& found = chosen.index->warnings();
    chosen.warnings.insert(chosen.warnings.end(), found.begin(), found.end());
  } else if (tensors.empty()) {
    fail(errc::malformed_file, "[open] {}: has neither an index nor a safetensors file",
         escaped_path(base));
  } else {
    chosen.shards = choose_without_index(base, tensors, chosen.warnings);
  }
  report_unused(base, tensors, chosen);
  return chosen;
}

}  // namespace moe64::checkpoint
