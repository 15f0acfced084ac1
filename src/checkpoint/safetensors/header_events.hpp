#pragma once

#include "checkpoint/json/events.hpp"
#include "checkpoint/safetensors/header.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// A tensor as the text gives it: positions in arrays, since those still grow.
struct raw_entry {
  std::uint32_t name_begin = 0;
  std::uint32_t name_bytes = 0;
  std::uint32_t shape_begin = 0;
  std::uint16_t rank = 0;
  file_dtype type = file_dtype::u8;
  index_t begin = 0;
  index_t end = 0;
};

/// Collects the entries of a header; refuses what is not {name: {dtype, shape, data_offsets}}.
/// Tensors that appear twice are found later, when they are sorted.
class header_events final : public json_events {
 public:
  header_events(std::string_view file, header_options const& options)
      : file_(file), options_(options) {}

  void null() override;
  void boolean(bool value) override;
  void natural(std::uint64_t value) override;
  void number(std::string_view text, bool integer) override;
  void text(std::string_view value) override;
  void begin_object() override;
  void key(std::string_view name) override;
  void end_object() override;
  void begin_array() override;
  void end_array() override;

  std::vector<raw_entry> entries;
  std::vector<char> names;
  std::vector<index_t> extents;
  metadata_list metadata;
  std::string unknown_field;  ///< the first one, where options allow them

 private:
  enum class place : std::uint8_t {
    before,          // the document
    top,             // names
    metadata_value,  // null or an object
    metadata,        // keys and texts
    entry_value,     // the object of a tensor
    entry,           // its fields
    dtype,
    shape_value,
    shape,
    offsets_value,
    offsets,
    unknown,  // a field to skip
    after,
  };

  [[noreturn]] void refuse(std::string_view found) const;
  [[nodiscard]] std::string subject() const;
  [[nodiscard]] std::string_view current_name() const;
  bool skip();  // a value that belongs to an unknown field
  void add_tensor(std::string_view name);
  void finish_entry();
  void count_metadata(std::string_view text);

  std::string_view file_;
  header_options options_;
  place place_ = place::before;
  index_t unknown_depth_ = 0;
  index_t metadata_bytes_ = 0;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  index_t offsets_seen_ = 0;
  std::vector<std::string> unknown_keys_;  // of the current entry
};

}  // namespace moe64::checkpoint
