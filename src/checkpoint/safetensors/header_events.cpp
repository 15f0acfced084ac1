#include "checkpoint/safetensors/header_events.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/safetensors/tensor_name.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <limits>

namespace moe64::checkpoint {
namespace {

constexpr std::size_t max_unknown_fields = 64;
constexpr std::size_t max_metadata_entries = 100'000;

std::uint32_t position(std::size_t value) {
  return narrow<std::uint32_t>(static_cast<index_t>(value));
}

}  // namespace

std::string_view header_events::current_name() const {
  raw_entry const& entry = entries.back();
  return {names.data() + entry.name_begin, entry.name_bytes};
}

std::string header_events::subject() const {
  bool const in_tensor = place_ != place::before && place_ != place::top &&
                         place_ != place::metadata_value && place_ != place::metadata &&
                         place_ != place::after;
  if (in_tensor) return fmt::format("{}: tensor {}", file_, quoted(current_name()));
  return std::string(file_);
}

void header_events::refuse(std::string_view found) const {
  std::string_view expected;
  switch (place_) {
    case place::before:
    case place::after:
      expected = "the header to be an object";
      break;
    case place::top:
    case place::entry_value:
      expected = "an object with dtype, shape and data_offsets";
      break;
    case place::metadata_value:
      expected = "__metadata__ to be an object";
      break;
    case place::metadata:
      expected = "the values of __metadata__ to be text";
      break;
    case place::entry:
    case place::unknown:
      expected = "a field of a tensor";
      break;
    case place::dtype:
      expected = "dtype to be text";
      break;
    case place::shape_value:
    case place::shape:
      expected = "shape to be an array of integers from 0 to 2^63 - 1 in plain digits";
      break;
    case place::offsets_value:
    case place::offsets:
      expected = "data_offsets to be two integers from 0 to 2^63 - 1 in plain digits";
      break;
  }
  fail(errc::malformed_file, "[safetensors] {}: found {}, expected {}", subject(), found, expected);
}

bool header_events::skip() {
  if (place_ != place::unknown) return false;
  if (unknown_depth_ == 0) place_ = place::entry;
  return true;
}

void header_events::null() {
  if (skip()) return;
  if (place_ != place::metadata_value) refuse("null");
  place_ = place::top;
}

void header_events::boolean(bool value) {
  if (!skip()) refuse(value ? "true" : "false");
}

void header_events::number(std::string_view text, bool /*integer*/) {
  if (!skip()) refuse(escaped(text, 40));
}

void header_events::natural(std::uint64_t value) {
  if (skip()) return;
  bool const fits = value <= static_cast<std::uint64_t>(std::numeric_limits<index_t>::max());
  if (place_ == place::shape && fits) {
    raw_entry& entry = entries.back();
    if (entry.rank >= options_.max_rank) {
      fail(errc::malformed_file, "[safetensors] {}: has more than {} dimensions", subject(),
           options_.max_rank);
    }
    ++entry.rank;
    extents.push_back(static_cast<index_t>(value));
  } else if (place_ == place::offsets && fits && offsets_seen_ < 2) {
    (offsets_seen_ == 0 ? entries.back().begin : entries.back().end) = static_cast<index_t>(value);
    ++offsets_seen_;
  } else {
    refuse(fmt::to_string(value));
  }
}

void header_events::count_metadata(std::string_view text) {
  metadata_bytes_ += static_cast<index_t>(text.size());
  if (metadata_bytes_ > options_.max_metadata_bytes || metadata.size() > max_metadata_entries) {
    fail(errc::malformed_file, "[safetensors] {}: __metadata__ has more than {} bytes or {} keys",
         file_, options_.max_metadata_bytes, max_metadata_entries);
  }
}

void header_events::text(std::string_view value) {
  if (skip()) return;
  if (place_ == place::metadata) {
    count_metadata(value);
    metadata.back().second = value;
  } else if (place_ == place::dtype) {
    auto const type = file_dtype_named(value);
    if (!type) {
      fail(errc::malformed_file, "[safetensors] {}: unknown dtype {}", subject(),
           quoted(value, 40));
    }
    entries.back().type = *type;
    place_ = place::entry;
  } else {
    refuse("text " + quoted(value, 40));
  }
}

void header_events::add_tensor(std::string_view name) {
  if (std::string_view const problem = tensor_name_problem(name); !problem.empty()) {
    fail(errc::malformed_file, "[safetensors] {}: tensor {}: the name {}", file_, quoted(name),
         problem);
  }
  if (static_cast<index_t>(entries.size()) >= options_.max_tensors) {
    fail(errc::malformed_file, "[safetensors] {}: has more than {} tensors", file_,
         options_.max_tensors);
  }
  raw_entry entry;
  entry.name_begin = position(names.size());
  entry.name_bytes = position(name.size());
  entry.shape_begin = position(extents.size());
  names.insert(names.end(), name.begin(), name.end());
  entries.push_back(entry);
  has_dtype_ = has_shape_ = has_offsets_ = false;
  unknown_keys_.clear();
  place_ = place::entry_value;
}

void header_events::key(std::string_view name) {
  auto const once = [&](bool& seen, place next) {
    if (seen) {
      fail(errc::malformed_file, "[safetensors] {}: has the key {} twice", subject(),
           quoted(name, 40));
    }
    seen = true;
    place_ = next;
  };
  if (place_ == place::unknown) return;
  if (place_ == place::top) {
    if (name == "__metadata__") {
      once(has_metadata_, place::metadata_value);
    } else {
      add_tensor(name);
    }
  } else if (place_ == place::metadata) {
    count_metadata(name);
    metadata.emplace_back(name, std::string());
  } else if (name == "dtype") {
    once(has_dtype_, place::dtype);
  } else if (name == "shape") {
    once(has_shape_, place::shape_value);
  } else if (name == "data_offsets") {
    once(has_offsets_, place::offsets_value);
  } else {
    if (!options_.lenient) {
      fail(errc::malformed_file, "[safetensors] {}: unknown field {}", subject(), quoted(name, 40));
    }
    bool const twice =
        std::find(unknown_keys_.begin(), unknown_keys_.end(), name) != unknown_keys_.end();
    if (twice || unknown_keys_.size() >= max_unknown_fields) {
      fail(errc::malformed_file, "[safetensors] {}: {} {}", subject(),
           twice ? "has twice the key" : "has too many unknown fields, such as", quoted(name, 40));
    }
    unknown_keys_.emplace_back(name);
    if (unknown_field.empty()) unknown_field = quoted(name, 40);
    place_ = place::unknown;
    unknown_depth_ = 0;
  }
}

void header_events::begin_object() {
  switch (place_) {
    case place::unknown:
      ++unknown_depth_;
      break;
    case place::before:
      place_ = place::top;
      break;
    case place::metadata_value:
      place_ = place::metadata;
      break;
    case place::entry_value:
      place_ = place::entry;
      break;
    default:
      refuse("an object");
  }
}

void header_events::end_object() {
  switch (place_) {
    case place::unknown:
      --unknown_depth_;
      skip();
      break;
    case place::top:
      place_ = place::after;
      break;
    case place::metadata:
      place_ = place::top;
      break;
    default:
      finish_entry();
  }
}

void header_events::finish_entry() {
  if (!has_dtype_ || !has_shape_ || !has_offsets_) {
    fail(errc::malformed_file, "[safetensors] {}: has no {}", subject(),
         !has_dtype_   ? "dtype"
         : !has_shape_ ? "shape"
                       : "data_offsets");
  }
  place_ = place::top;
}

void header_events::begin_array() {
  switch (place_) {
    case place::unknown:
      ++unknown_depth_;
      break;
    case place::shape_value:
      place_ = place::shape;
      break;
    case place::offsets_value:
      place_ = place::offsets;
      offsets_seen_ = 0;
      break;
    default:
      refuse("an array");
  }
}

void header_events::end_array() {
  if (place_ == place::unknown) {
    --unknown_depth_;
    skip();
    return;
  }
  if (place_ == place::offsets && offsets_seen_ != 2) {
    refuse(fmt::format("{} of them", offsets_seen_));
  }
  place_ = place::entry;
}

}  // namespace moe64::checkpoint
