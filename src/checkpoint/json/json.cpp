#include "checkpoint/json/json.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/json/storage.hpp"
#include "core/fail.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>
#include <vector>

namespace moe64::checkpoint {

std::string_view name(json_kind kind) noexcept {
  switch (kind) {
    case json_kind::null:
      return "null";
    case json_kind::boolean:
      return "a boolean";
    case json_kind::integer:
      return "an integer";
    case json_kind::real:
      return "a real";
    case json_kind::text:
      return "text";
    case json_kind::array:
      return "an array";
    case json_kind::object:
      return "an object";
  }
  return "unknown";
}

json_document::json_document() : storage_(std::make_unique<storage>()) {}
json_document::~json_document() = default;
json_value const& json_document::root() const noexcept { return storage_->values.front(); }
std::string const& json_document::file_name() const noexcept { return storage_->file; }

std::string_view json_value::key() const noexcept {
  return std::string_view(document_->storage_->characters).substr(key_begin_, key_bytes_);
}

std::string json_value::path() const {
  std::vector<std::string> steps;
  for (json_value const* value = this; value->parent_ != 0; value -= value->parent_) {
    json_value const* parent = value - value->parent_;
    if (parent->kind_ == json_kind::object) {
      steps.push_back((parent->parent_ == 0 ? "" : ".") + escaped(value->key(), 60));
    } else {
      auto const position = std::distance(parent->begin(), iterator(value));
      steps.push_back(fmt::format("[{}]", position));
    }
  }
  std::reverse(steps.begin(), steps.end());
  std::string text = steps.empty() ? "the document" : fmt::format("{}", fmt::join(steps, ""));
  constexpr std::size_t longest = 400;
  if (text.size() > longest) text.replace(longest, std::string::npos, "...");
  return fmt::format("{}: {}", document_->storage_->file, text);
}

void json_value::refuse(std::string_view expected) const {
  fail(errc::malformed_file, "[json] {} is {}, expected {}", path(), checkpoint::name(kind_),
       expected);
}

void json_value::require(json_kind kind) const {
  if (kind_ != kind) refuse(checkpoint::name(kind));
}

bool json_value::boolean() const {
  require(json_kind::boolean);
  return true_;
}

std::string_view json_value::text() const {
  require(json_kind::text);
  return std::string_view(document_->storage_->characters).substr(text_begin_, text_bytes_);
}

std::string_view json_value::number_text() const {
  if (kind_ != json_kind::integer && kind_ != json_kind::real) refuse("a number");
  return std::string_view(document_->storage_->characters).substr(text_begin_, text_bytes_);
}

index_t json_value::integer() const {
  require(json_kind::integer);
  std::string_view const digits = number_text();
  index_t value = 0;
  auto const [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (problem != std::errc() || end != digits.data() + digits.size()) {
    fail(errc::malformed_file, "[json] {} is {}, which does not fit 64 bits with a sign", path(),
         escaped(digits, 40));
  }
  return value;
}

double json_value::real() const {
  std::string_view const digits = number_text();
  double value = 0;
  auto const [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  // A literal too small to be told from 0 is 0; one too large never became a value.
  if (problem == std::errc::result_out_of_range)
    return std::copysign(0.0, digits[0] == '-' ? -1.0 : 1.0);
  if (problem != std::errc() || end != digits.data() + digits.size()) refuse("a number");
  return value;
}

json_value::iterator json_value::begin() const noexcept {
  return iterator(size_ == 0 ? this + span_ : this + 1);
}
json_value::iterator json_value::end() const noexcept { return iterator(this + span_); }

json_value const* json_value::find(std::string_view key) const {
  require(json_kind::object);
  for (json_value const& member : *this) {
    if (member.key() == key) return &member;
  }
  return nullptr;
}

json_value const& json_value::at(std::string_view key) const {
  json_value const* const member = find(key);
  if (member == nullptr) {
    fail(errc::malformed_file, "[json] {} has no member {}", path(), quoted(key, 60));
  }
  return *member;
}

json_value const& json_value::item(index_t position) const {
  require(json_kind::array);
  if (position < 0 || position >= size()) {
    fail(errc::malformed_file, "[json] {} has {} items, none at {}", path(), size(), position);
  }
  iterator at = begin();
  std::advance(at, position);
  return *at;
}

}  // namespace moe64::checkpoint
