#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/json/events.hpp"
#include "checkpoint/json/json.hpp"
#include "checkpoint/json/storage.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

namespace moe64::checkpoint {

/// Events to values in one array. Offsets are 32-bit: the limits keep text and values below 2^31.
class json_builder final : public json_events {
 public:
  json_builder(std::string_view file, json_limits const& limits)
      : document_(new json_document), limits_(limits) {
    document_->storage_->file = file;
  }

  void null() override { add(json_kind::null); }
  void boolean(bool value) override { add(json_kind::boolean).true_ = value; }
  void natural(std::uint64_t value) override { number(fmt::to_string(value), true); }
  void number(std::string_view text, bool integer) override {
    keep_text(add(integer ? json_kind::integer : json_kind::real), text);
  }
  void text(std::string_view value) override { keep_text(add(json_kind::text), value); }
  void begin_object() override { open(json_kind::object); }
  void begin_array() override { open(json_kind::array); }
  void end_array() override { close(); }
  void key(std::string_view name) override {
    key_begin_ = keep(name);
    key_bytes_ = offset(name.size());
  }
  void end_object() override {
    check_keys(values()[open_.back()]);
    close();
  }

  std::unique_ptr<json_document const> finish() { return std::move(document_); }

 private:
  std::vector<json_value>& values() { return document_->storage_->values; }

  static std::uint32_t offset(std::size_t value) {
    return narrow<std::uint32_t>(static_cast<index_t>(value));
  }

  std::uint32_t keep(std::string_view text) {
    std::uint32_t const begin = offset(document_->storage_->characters.size());
    document_->storage_->characters += text;
    return begin;
  }

  void keep_text(json_value& value, std::string_view text) {
    value.text_begin_ = keep(text);
    value.text_bytes_ = offset(text.size());
  }

  json_value& add(json_kind kind) {
    if (static_cast<index_t>(values().size()) >= limits_.values) {
      fail(errc::malformed_file, "[json] {}: has more than {} values", document_->storage_->file,
           limits_.values);
    }
    json_value value;
    value.document_ = document_.get();
    value.kind_ = kind;
    value.key_begin_ = std::exchange(key_begin_, 0);
    value.key_bytes_ = std::exchange(key_bytes_, 0);
    if (!open_.empty()) {
      value.parent_ = offset(values().size() - open_.back());
      ++values()[open_.back()].size_;
    }
    return values().emplace_back(value);
  }

  void open(json_kind kind) {
    std::size_t const position = values().size();
    add(kind);
    open_.push_back(position);
  }

  void close() {
    values()[open_.back()].span_ = offset(values().size() - open_.back());
    open_.pop_back();
  }

  /// Sorted, not compared pairwise: an object of a million keys must not take a million squared.
  void check_keys(json_value& object) {
    object.span_ = offset(values().size() - open_.back());
    keys_.clear();
    for (json_value const& member : object) keys_.push_back(member.key());
    std::sort(keys_.begin(), keys_.end());
    auto const twice = std::adjacent_find(keys_.begin(), keys_.end());
    if (twice != keys_.end()) {
      fail(errc::malformed_file, "[json] {} has the key {} twice", object.path(), quoted(*twice));
    }
  }

  std::unique_ptr<json_document> document_;
  json_limits limits_;
  std::vector<std::size_t> open_;
  std::vector<std::string_view> keys_;
  std::uint32_t key_begin_ = 0;
  std::uint32_t key_bytes_ = 0;
};

std::unique_ptr<json_document const> parse_json(std::string_view text, std::string_view file_name,
                                                json_limits const& limits) {
  std::string const file = escaped_path(file_name);
  auto const bytes = static_cast<index_t>(text.size());
  if (limits.bytes > std::numeric_limits<std::int32_t>::max()) {
    fail(errc::invalid_argument, "[json] a limit of {} bytes is past 2^31 - 1", limits.bytes);
  }
  if (bytes > limits.bytes) {
    fail(errc::malformed_file, "[json] {}: has {} bytes, more than {}", file, bytes, limits.bytes);
  }
  json_builder builder(file, limits);
  json_event_limits const events = {
      .depth = limits.depth, .literal_bytes = limits.bytes, .non_finite = limits.non_finite};
  read_json(text, file, events, builder);
  return builder.finish();
}

}  // namespace moe64::checkpoint
