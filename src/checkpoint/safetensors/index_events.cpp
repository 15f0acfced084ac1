#include "checkpoint/safetensors/index_events.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/safetensors/tensor_name.hpp"
#include "core/fail.hpp"

#include <limits>

namespace moe64::checkpoint {
namespace {

std::uint32_t position(std::size_t value) {
  return narrow<std::uint32_t>(static_cast<index_t>(value));
}

}  // namespace

void index_events::refuse(std::string_view found) const {
  std::string_view const expected = open_.empty()        ? "the index to be an object"
                                    : in_weight_map_     ? "the name of a file"
                                    : open_.size() == 1U ? "an object"
                                                         : "another value";
  std::string where;
  if (in_weight_map_) {
    where = "weight_map of tensor " + quoted(current_name());
  } else {
    where = open_.empty() ? "the document" : escaped(top_key_, 60);
  }
  fail(errc::malformed_file, "[index] {}: {}: found {}, expected {}", file_, where, found,
       expected);
}

std::string_view index_events::current_name() const {
  raw_entry const& entry = entries.back();
  return {names.data() + entry.name_begin, entry.name_bytes};
}

bool index_events::at_total_size() const {
  return open_.size() == 2 && open_.back() == '{' && top_key_ == "metadata" &&
         inner_key_ == "total_size";
}

void index_events::scalar(std::string_view found) {
  // metadata: null is what some writers put for "nothing".
  bool const empty_metadata = open_.size() == 1 && top_key_ == "metadata" && found == "null";
  bool const named_value =
      open_.size() == 1 && (top_key_ == "metadata" || top_key_ == "weight_map");
  if (open_.empty() || in_weight_map_ || (named_value && !empty_metadata)) refuse(found);
  if (at_total_size()) total_size_problem = found;
}

void index_events::natural(std::uint64_t value) {
  std::string const spelt = fmt::to_string(value);
  bool const fits = value <= static_cast<std::uint64_t>(std::numeric_limits<index_t>::max());
  scalar(spelt);
  if (at_total_size() && fits) {
    total_size = static_cast<index_t>(value);
    total_size_problem.clear();
  }
}

void index_events::number(std::string_view text, bool /*integer*/) { scalar(escaped(text, 40)); }

void index_events::text(std::string_view value) {
  if (in_weight_map_) {
    add(value);
  } else {
    scalar("text " + quoted(value, 40));
  }
}

void index_events::add(std::string_view file) {
  raw_entry& entry = entries.back();
  if (!files.empty() && file == last_file_name_) {
    entry.file = last_file_;
    return;
  }
  auto const known = files.find(file);
  if (known != files.end()) {
    last_file_ = known->second;
  } else {
    std::string_view problem = file_name_problem(file);
    if (problem.empty() && !file.ends_with(".safetensors")) problem = "is not a safetensors file";
    if (!problem.empty()) {
      fail(errc::malformed_file, "[index] {}: tensor {} is mapped to the file {}, which {}", file_,
           quoted(current_name()), quoted(file), problem);
    }
    if (static_cast<index_t>(files.size()) >= options_.max_files) {
      fail(errc::malformed_file, "[index] {}: names more than {} files", file_, options_.max_files);
    }
    last_file_ = position(files.size());
    files.emplace(file, last_file_);
  }
  last_file_name_ = file;
  entry.file = last_file_;
}

void index_events::key(std::string_view name) {
  if (in_weight_map_) {
    if (std::string_view const problem = tensor_name_problem(name); !problem.empty()) {
      fail(errc::malformed_file, "[index] {}: tensor {}: the name {}", file_, quoted(name),
           problem);
    }
    if (static_cast<index_t>(entries.size()) >= options_.max_tensors) {
      fail(errc::malformed_file, "[index] {}: has more than {} tensors", file_,
           options_.max_tensors);
    }
    entries.push_back({position(names.size()), position(name.size()), 0});
    names.insert(names.end(), name.begin(), name.end());
    return;
  }
  if (!keys_.back().emplace(name).second) {
    fail(errc::malformed_file, "[index] {}: has the key {} twice in one object", file_,
         quoted(name, 60));
  }
  if (open_.size() == 1) {
    top_key_ = name;
    if (name != "metadata" && name != "weight_map" && unknown_key.empty()) {
      unknown_key = quoted(name, 60);
    }
  }
  if (open_.size() == 2) inner_key_ = name;
}

void index_events::begin_object() {
  if (in_weight_map_) refuse("an object");
  if (open_.size() == 1 && top_key_ == "weight_map") {
    in_weight_map_ = has_weight_map = true;
  } else {
    keys_.emplace_back();
  }
  open_.push_back('{');
}

void index_events::end_object() {
  if (in_weight_map_) {
    in_weight_map_ = false;
  } else {
    keys_.pop_back();
  }
  open_.pop_back();
}

void index_events::begin_array() {
  scalar("an array");
  open_.push_back('[');
}

void index_events::end_array() { open_.pop_back(); }

}  // namespace moe64::checkpoint
