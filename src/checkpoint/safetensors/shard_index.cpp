#include "checkpoint/safetensors/shard_index.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/json/write.hpp"
#include "checkpoint/safetensors/index_events.hpp"
#include "checkpoint/safetensors/tensor_name.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <charconv>

namespace moe64::checkpoint {
namespace {

constexpr index_t longest_literal = 64 << 10;
constexpr std::string_view suffix = ".safetensors";

std::vector<finding> warnings_of(index_events const& found, std::string_view file) {
  std::vector<finding> result;
  if (!found.total_size) {
    result.push_back(
        file_warning("total-size", "{}: metadata.total_size is {}", file,
                     found.total_size_problem.empty() ? "missing" : found.total_size_problem));
  }
  if (!found.unknown_key.empty()) {
    result.push_back(file_warning("unknown-field", "{}: unknown keys are ignored, such as {}", file,
                                  found.unknown_key));
  }
  return result;
}

}  // namespace

shard_index shard_index::parse(std::string_view text, std::string_view file_name,
                               index_options const& options) {
  std::string const file = escaped_path(file_name);
  if (static_cast<index_t>(text.size()) > options.max_bytes) {
    fail(errc::malformed_file, "[index] {}: has {} bytes, more than {}", file, text.size(),
         options.max_bytes);
  }
  index_events found(file, options);
  read_json(text, file, {.depth = options.max_depth, .literal_bytes = longest_literal}, found);
  if (!found.has_weight_map) fail(errc::malformed_file, "[index] {}: has no weight_map", file);
  if (found.entries.empty()) fail(errc::malformed_file, "[index] {}: maps no tensor", file);

  shard_index index;
  std::vector<index_t> sorted_position(found.files.size());  // by number of appearance
  for (auto const& [name, number] : found.files) {
    sorted_position[number] = static_cast<index_t>(index.files_.size());
    index.files_.push_back(name);
  }
  index.entries_.reserve(found.entries.size());
  for (index_events::raw_entry const& raw : found.entries) {
    index.entries_.push_back(
        {{found.names.data() + raw.name_begin, raw.name_bytes}, sorted_position[raw.file]});
  }
  index.names_ = std::move(found.names);
  auto const less = [](entry const& a, entry const& b) { return a.name < b.name; };
  if (!std::is_sorted(index.entries_.begin(), index.entries_.end(), less)) {
    std::sort(index.entries_.begin(), index.entries_.end(), less);
  }
  auto const twice =
      std::adjacent_find(index.entries_.begin(), index.entries_.end(),
                         [](entry const& a, entry const& b) { return a.name == b.name; });
  if (twice != index.entries_.end()) {
    fail(errc::malformed_file, "[index] {}: tensor {} is mapped twice", file, quoted(twice->name));
  }
  index.total_size_ = found.total_size;
  index.warnings_ = warnings_of(found, file);
  return index;
}

std::string shard_index_text(std::span<std::string const> files,
                             std::span<shard_index::entry const> entries, index_t total_size) {
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_size);
  bool first = true;
  for (shard_index::entry const& entry : entries) {
    std::string const& file = files[static_cast<std::size_t>(entry.file)];
    std::string_view problem = tensor_name_problem(entry.name);
    if (problem.empty()) problem = file_name_problem(file);
    if (!problem.empty()) {
      fail(errc::invalid_argument, "[index] tensor {} in file {}: a name {}", quoted(entry.name),
           quoted(file), problem);
    }
    text += first ? "\n    " : ",\n    ";
    first = false;
    append_json_text(text, entry.name);
    text += ": ";
    append_json_text(text, file);
  }
  text += "\n  }\n}\n";
  return text;
}

std::string shard_file_name(std::string_view stem, index_t number, index_t count) {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, number, count, suffix);
}

std::optional<shard_number> parse_shard_file_name(std::string_view name) noexcept {
  // Taken from the end: a stem may have dashes itself.
  auto const take_number = [&](index_t& value) {
    std::size_t const digits =
        name.size() - 1 - std::min(name.find_last_not_of("0123456789"), name.size() - 1);
    if (digits < 1 || digits > 9) return false;
    std::string_view const text = name.substr(name.size() - digits);
    std::from_chars(text.data(), text.data() + text.size(), value);
    name.remove_suffix(digits);
    return true;
  };
  auto const take_word = [&](std::string_view word) {
    if (!name.ends_with(word) || name.size() == word.size()) return false;
    name.remove_suffix(word.size());
    return true;
  };
  shard_number result{};
  if (!take_word(suffix) || !take_number(result.count) || !take_word("-of-") ||
      !take_number(result.number) || !take_word("-")) {
    return std::nullopt;
  }
  result.stem = name;
  return result;
}

}  // namespace moe64::checkpoint
