#include "checkpoint/safetensors/header.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/safetensors/header_events.hpp"
#include "checkpoint/safetensors/tensor_name.hpp"
#include "core/fail.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

namespace moe64::checkpoint {
namespace {

constexpr index_t length_bytes = 8;
constexpr index_t hub_header_bytes = 25'000'000;  // more, and the Hub's client does not read it

template <class Range, class Less>
void sort_unless_sorted(Range& range, Less less) {
  if (!std::is_sorted(range.begin(), range.end(), less)) {
    std::sort(range.begin(), range.end(), less);
  }
}

/// The ranges, relative to the data: one after the other from 0 to the end of the file.
void check_ranges(std::vector<tensor_entry>& tensors, std::string_view file, index_t data_bytes) {
  auto const end = [](tensor_entry const& tensor) { return tensor.begin + tensor.bytes; };
  sort_unless_sorted(tensors, [](tensor_entry const& a, tensor_entry const& b) {
    return std::tie(a.begin, a.bytes) < std::tie(b.begin, b.bytes);
  });
  index_t covered = 0;
  for (tensor_entry const& tensor : tensors) {
    if (tensor.begin != covered) {
      fail(errc::malformed_file,
           "[safetensors] {}: tensor {}: starts at byte {} of the data, {} {}", file,
           quoted(tensor.name), tensor.begin,
           tensor.begin < covered ? "inside another tensor that ends at"
                                  : "which leaves a hole after byte",
           covered);
    }
    covered = end(tensor);
  }
  if (covered != data_bytes) {
    fail(errc::malformed_file,
         "[safetensors] {}: the tensors fill {} bytes, but {} bytes follow the header: {}", file,
         covered, data_bytes,
         covered > data_bytes ? "the file is truncated" : "bytes of no tensor");
  }
}

void check_names(std::vector<tensor_entry>& tensors, std::string_view file) {
  sort_unless_sorted(tensors,
                     [](tensor_entry const& a, tensor_entry const& b) { return a.name < b.name; });
  auto const twice = std::adjacent_find(
      tensors.begin(), tensors.end(),
      [](tensor_entry const& a, tensor_entry const& b) { return a.name == b.name; });
  if (twice != tensors.end()) {
    fail(errc::malformed_file, "[safetensors] {}: tensor {} is there twice", file,
         quoted(twice->name));
  }
}

void check_metadata_keys(metadata_list const& metadata, std::string_view file) {
  std::vector<std::string_view> keys;
  keys.reserve(metadata.size());
  for (auto const& [key, value] : metadata) keys.emplace_back(key);
  std::sort(keys.begin(), keys.end());
  auto const twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) {
    fail(errc::malformed_file, "[safetensors] {}: __metadata__ has the key {} twice", file,
         quoted(*twice));
  }
}

/// The entry of a tensor whose range is as long as its type and shape say.
tensor_entry checked_entry(raw_entry const& raw, header_events const& found,
                           std::string_view file) {
  tensor_entry entry;
  entry.name = {found.names.data() + raw.name_begin, raw.name_bytes};
  entry.shape = {found.extents.data() + raw.shape_begin, raw.rank};
  entry.type = raw.type;
  entry.begin = raw.begin;
  std::string_view const problem = count_bytes(entry.type, entry.shape, entry.bytes);
  if (!problem.empty()) {
    fail(errc::malformed_file, "[safetensors] {}: tensor {}: {} {}: {}", file, quoted(entry.name),
         name(entry.type), to_string(entry.shape), problem);
  }
  if (raw.end < raw.begin || raw.end - raw.begin != entry.bytes) {
    fail(errc::malformed_file,
         "[safetensors] {}: tensor {}: data_offsets [{}, {}], but {} {} has {} bytes", file,
         quoted(entry.name), raw.begin, raw.end, name(entry.type), to_string(entry.shape),
         entry.bytes);
  }
  return entry;
}

std::vector<finding> warnings_of(std::string_view text, std::string_view file,
                                 header_events const& found) {
  std::vector<finding> result;
  if (text.front() != '{') {
    result.push_back(file_warning("leading-whitespace", "{}: whitespace before the header", file));
  }
  if (static_cast<index_t>(text.size()) > hub_header_bytes) {
    result.push_back(file_warning("large-header",
                                  "{}: a header of {} bytes; the Hub's client reads "
                                  "at most {}",
                                  file, text.size(), hub_header_bytes));
  }
  if (!is_ascii({found.names.data(), found.names.size()})) {
    result.push_back(file_warning("non-ascii-name",
                                  "{}: names outside of ASCII; what looks the "
                                  "same may be another name",
                                  file));
  }
  if (!found.unknown_field.empty()) {
    result.push_back(file_warning("unknown-field", "{}: unknown fields are ignored, such as {}",
                                  file, found.unknown_field));
  }
  return result;
}

}  // namespace

std::string to_string(std::span<index_t const> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string_view count_bytes(file_dtype type, std::span<index_t const> shape,
                             index_t& bytes) noexcept {
  index_t total = bits(type);
  bool empty = false;
  for (index_t const extent : shape) {
    if (extent < 0) return "an extent is negative";
    if (extent == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(total, extent, &total)) {
      return "the size does not fit 63 bits";
    }
  }
  if (empty) total = 0;
  if (total % 8 != 0) return "the elements do not fill whole bytes";
  bytes = total / 8;
  return {};
}

safetensors_header safetensors_header::parse(std::string_view text, std::string_view file_name,
                                             index_t file_bytes, header_options const& options) {
  std::string const file = escaped_path(file_name);
  if (text.empty()) fail(errc::malformed_file, "[safetensors] {}: the header is empty", file);
  header_events found(file, options);
  read_json(text, file, {.depth = options.max_depth, .literal_bytes = options.max_metadata_bytes},
            found);

  safetensors_header header;
  header.data_begin_ = length_bytes + static_cast<index_t>(text.size());
  header.tensors_.reserve(found.entries.size());
  for (raw_entry const& raw : found.entries) {
    header.tensors_.push_back(checked_entry(raw, found, file));
  }
  found.entries = {};
  check_ranges(header.tensors_, file, file_bytes - header.data_begin_);
  check_names(header.tensors_, file);
  check_metadata_keys(found.metadata, file);
  for (tensor_entry& tensor : header.tensors_) tensor.begin += header.data_begin_;
  header.warnings_ = warnings_of(text, file, found);
  header.names_ = std::move(found.names);
  header.extents_ = std::move(found.extents);
  header.metadata_ = std::move(found.metadata);
  return header;
}

namespace {

/// What git leaves in the place of a large file whose content was not fetched.
void refuse_pointer(input_file const& file, std::string const& name) {
  constexpr index_t most_bytes = 1024;  // as the specification of Git LFS has it
  if (file.bytes() > most_bytes) return;
  std::string const text = file.read_text(most_bytes);
  if (!text.starts_with("version https://git-lfs.github.com/spec/")) return;
  constexpr std::string_view key = "\nsize ";
  std::size_t const at = text.find(key);
  std::string const size =
      at == std::string::npos
          ? "of unknown size"
          : fmt::format("of {} bytes",
                        quoted(std::string_view(text).substr(
                                   at + key.size(), text.find('\n', at + 1) - at - key.size()),
                               24));
  fail(errc::malformed_file,
       "[safetensors] {}: is a Git LFS pointer, not the file {} that it stands for: fetch that "
       "with `git lfs pull`",
       name, size);
}

}  // namespace

safetensors_header safetensors_header::read(input_file const& file, header_options const& options) {
  std::string const name = escaped_path(file.path());
  refuse_pointer(file, name);
  std::array<std::byte, length_bytes> length{};
  if (file.bytes() < length_bytes) {
    fail(errc::malformed_file, "[safetensors] {}: has {} bytes, and even an empty one has {}", name,
         file.bytes(), length_bytes);
  }
  file.read(0, length);
  std::uint64_t declared = 0;
  for (std::size_t i = 0; i < length.size(); ++i) {
    declared |= std::to_integer<std::uint64_t>(length[i]) << (8 * i);
  }
  if (declared == 0 || declared > static_cast<std::uint64_t>(options.max_bytes)) {
    fail(errc::malformed_file, "[safetensors] {}: a header of {} bytes, expected 1 to {}", name,
         declared, options.max_bytes);
  }
  if (declared > static_cast<std::uint64_t>(file.bytes() - length_bytes)) {
    fail(errc::malformed_file, "[safetensors] {}: a header of {} bytes in a file of {}: truncated",
         name, declared, file.bytes());
  }
  std::string text(declared, '\0');
  file.read(length_bytes, std::as_writable_bytes(std::span(text)));
  return parse(text, file.path(), file.bytes(), options);
}

}  // namespace moe64::checkpoint
