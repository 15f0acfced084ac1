#pragma once

#include "moe64/index.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

namespace moe64::checkpoint {

/// What a document may be and cost. Memory is at most about 4 * `bytes` + 120 * `values` while it
/// is read.
struct json_limits {
  index_t bytes = index_t{16} << 20;
  index_t depth = 32;
  index_t values = 2'000'000;
  bool non_finite = false;  ///< NaN and infinities are numbers, as Python writes them into configs
};

enum class json_kind : std::uint8_t { null, boolean, integer, real, text, array, object };

[[nodiscard]] std::string_view name(json_kind kind) noexcept;

class json_document;

/// One value of a document: immutable, and alive as long as its document. A getter that does not
/// fit the value fails with the path, as in "config.json: quantization_config.weight_block_size[0]
/// is text, expected an integer".
class json_value {
 public:
  class iterator;

  [[nodiscard]] json_kind kind() const noexcept { return kind_; }
  [[nodiscard]] bool is(json_kind kind) const noexcept { return kind_ == kind; }

  [[nodiscard]] bool boolean() const;
  [[nodiscard]] index_t integer() const;  ///< an integer literal of the range of index_t
  [[nodiscard]] double real() const;      ///< an integer or a real; not finite where those are read
  [[nodiscard]] std::string_view text() const;
  [[nodiscard]] std::string_view number_text() const;  ///< as the file spells it

  /// The member of an object, or null. Looks at one member after the other.
  [[nodiscard]] json_value const* find(std::string_view key) const;
  [[nodiscard]] json_value const& at(std::string_view key) const;  ///< fails when absent
  /// The item of an array. Looks at one item after the other: iterate over long arrays.
  [[nodiscard]] json_value const& item(index_t position) const;

  /// Items of an array or members of an object, in file order; other kinds have none.
  [[nodiscard]] index_t size() const noexcept { return size_; }
  [[nodiscard]] iterator begin() const noexcept;
  [[nodiscard]] iterator end() const noexcept;

  [[nodiscard]] std::string_view key() const noexcept;  ///< of a member of an object
  [[nodiscard]] std::string path() const;               ///< "config.json: a.b[3]"; safe to print

 private:
  friend class json_document;
  friend class json_builder;
  [[noreturn]] void refuse(std::string_view expected) const;
  void require(json_kind kind) const;

  // Values lie in one array in file order, so that the subtree of a value is [this, this + span_).
  json_document const* document_ = nullptr;
  std::uint32_t key_begin_ = 0;
  std::uint32_t key_bytes_ = 0;
  std::uint32_t text_begin_ = 0;
  std::uint32_t text_bytes_ = 0;
  std::uint32_t parent_ = 0;  // how many values before this one
  std::uint32_t span_ = 1;
  std::uint32_t size_ = 0;
  json_kind kind_ = json_kind::null;
  bool true_ = false;
};

class json_value::iterator {
 public:
  using value_type = json_value;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::forward_iterator_tag;
  using pointer = json_value const*;
  using reference = json_value const&;

  iterator() = default;
  explicit iterator(json_value const* at) noexcept : at_(at) {}
  reference operator*() const noexcept { return *at_; }
  pointer operator->() const noexcept { return at_; }
  iterator& operator++() noexcept {
    at_ += at_->span_;
    return *this;
  }
  iterator operator++(int) noexcept {
    iterator const before = *this;
    ++*this;
    return before;
  }
  bool operator==(iterator const&) const = default;

 private:
  json_value const* at_ = nullptr;
};

/// A parsed file. Never moves its values, so it is held by pointer.
class json_document {
 public:
  json_document(json_document const&) = delete;
  json_document& operator=(json_document const&) = delete;
  ~json_document();

  [[nodiscard]] json_value const& root() const noexcept;
  [[nodiscard]] std::string const& file_name() const noexcept;

 private:
  friend class json_value;
  friend class json_builder;
  json_document();
  struct storage;
  std::unique_ptr<storage> storage_;
};

/// A strict document: UTF-8, no key twice in an object, no surrogate alone, nothing after the
/// value, within the limits; or errc::malformed_file with the position. `file_name` is for
/// messages.
[[nodiscard]] std::unique_ptr<json_document const> parse_json(std::string_view text,
                                                              std::string_view file_name,
                                                              json_limits const& limits = {});

}  // namespace moe64::checkpoint
