#include "checkpoint/safetensors/writer.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/json/write.hpp"
#include "checkpoint/safetensors/tensor_name.hpp"
#include "core/fail.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

namespace moe64::checkpoint {
namespace {

constexpr index_t data_alignment = 64;
constexpr std::size_t length_bytes = 8;
constexpr index_t max_header_bytes = 25'000'000;  // what the Hub's client reads
constexpr std::size_t piece_bytes = std::size_t{8} << 20;

new_tensor const& at(std::span<new_tensor const> tensors, index_t position) {
  return tensors[static_cast<std::size_t>(position)];
}

void check_tensor_name(new_tensor const& tensor) {
  std::string_view problem = tensor_name_problem(tensor.name);
  if (problem.empty() && tensor.name == "__metadata__") problem = "is reserved";
  if (!problem.empty()) {
    fail(errc::invalid_argument, "[write] tensor {}: the name {}", quoted(tensor.name), problem);
  }
}

std::vector<index_t> file_order(std::span<new_tensor const> tensors) {
  std::vector<index_t> order(tensors.size());
  std::iota(order.begin(), order.end(), index_t{0});
  std::sort(order.begin(), order.end(), [&](index_t left, index_t right) {
    new_tensor const& a = at(tensors, left);
    new_tensor const& b = at(tensors, right);
    return a.type != b.type ? a.type > b.type : a.name < b.name;
  });
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (new_tensor const& tensor : tensors) names.emplace_back(tensor.name);
  std::sort(names.begin(), names.end());
  auto const twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    fail(errc::invalid_argument, "[write] tensor {} is there twice", quoted(*twice));
  }
  return order;
}

void append_metadata(std::string& text, metadata_list metadata) {
  std::sort(metadata.begin(), metadata.end());
  text += R"("__metadata__":{)";
  for (std::size_t i = 0; i < metadata.size(); ++i) {
    auto const& [key, value] = metadata[i];
    if (i != 0 && metadata[i - 1].first == key) {
      fail(errc::invalid_argument, "[write] metadata key {} is there twice", quoted(key));
    }
    if (i != 0) text += ',';
    append_json_text(text, key);
    text += ':';
    append_json_text(text, value);
  }
  text += '}';
}

/// Checksums of header and tensors, in the order of the file, as one.
std::uint64_t combined(std::uint64_t header, std::span<std::uint64_t const> tensors) {
  checksum all;
  all.add(std::as_bytes(std::span(&header, 1)));
  all.add(std::as_bytes(tensors));
  return all.value();
}

/// The checksum of a range that `read` fills pieces of.
template <class Read>
std::uint64_t sum_of(Read const& read, index_t begin, index_t bytes,
                     std::vector<std::byte>& buffer) {
  checksum sum;
  buffer.resize(piece_bytes);
  while (bytes > 0) {
    index_t const count = std::min(bytes, static_cast<index_t>(piece_bytes));
    auto const piece = std::span(buffer).first(static_cast<std::size_t>(count));
    read(begin, piece);
    sum.add(piece);
    begin += count;
    bytes -= count;
  }
  return sum.value();
}

}  // namespace

file_layout lay_out(std::span<new_tensor const> tensors, metadata_list const& metadata) {
  file_layout layout;
  layout.order = file_order(tensors);
  layout.places.resize(tensors.size());
  std::string text(length_bytes, '\0');
  text += '{';
  if (!metadata.empty()) append_metadata(text, metadata);
  index_t end = 0;
  for (index_t const position : layout.order) {
    new_tensor const& tensor = at(tensors, position);
    check_tensor_name(tensor);
    index_t bytes = 0;
    std::string_view const problem = count_bytes(tensor.type, tensor.shape, bytes);
    if (!problem.empty()) {
      fail(errc::invalid_argument, "[write] tensor {}: {} {}: {}", quoted(tensor.name),
           name(tensor.type), to_string(tensor.shape), problem);
    }
    index_t const begin = end;
    end = checked_add(begin, bytes);
    layout.places[static_cast<std::size_t>(position)] = {begin, bytes};
    if (text.size() > length_bytes + 1) text += ',';
    append_json_text(text, tensor.name);
    text += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        name(tensor.type), fmt::join(tensor.shape, ","), begin, end);
  }
  text += '}';
  index_t const data_begin = align_up(static_cast<index_t>(text.size()), data_alignment);
  text.resize(static_cast<std::size_t>(data_begin), ' ');
  if (data_begin > max_header_bytes) {
    fail(errc::invalid_argument,
         "[write] a header of {} bytes for {} tensors is past {}: use more shards", data_begin,
         tensors.size(), max_header_bytes);
  }
  std::uint64_t const length = text.size() - length_bytes;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    text[i] = static_cast<char>(length >> (8 * i) & 0xff);
  }
  for (file_layout::place& place : layout.places) place.begin += data_begin;
  layout.bytes = checked_add(data_begin, end);
  layout.header = std::move(text);
  return layout;
}

safetensors_writer::safetensors_writer(output_folder const& folder, std::string_view name,
                                       std::vector<new_tensor> tensors,
                                       metadata_list const& metadata, bool replace)
    : tensors_(std::move(tensors)),
      layout_(lay_out(tensors_, metadata)),
      file_(folder, name, layout_.bytes, replace),
      progress_(tensors_.size()) {
  file_.write(0, std::as_bytes(std::span(layout_.header)));
}

void safetensors_writer::append(index_t tensor, std::span<std::byte const> bytes) {
  if (tensor < 0 || tensor >= static_cast<index_t>(tensors_.size())) {
    fail(errc::invalid_argument, "[write] {}: tensor {} of {}", escaped_path(file_.path()), tensor,
         tensors_.size());
  }
  file_layout::place const& place = layout_.places[static_cast<std::size_t>(tensor)];
  progress& done = progress_[static_cast<std::size_t>(tensor)];
  if (static_cast<index_t>(bytes.size()) > place.bytes - done.written) {
    fail(errc::invalid_argument, "[write] {}: tensor {}: {} bytes after {} of {}",
         escaped_path(file_.path()), quoted(at(tensors_, tensor).name), bytes.size(), done.written,
         place.bytes);
  }
  file_.write(place.begin + done.written, bytes);
  done.sum.add(bytes);
  done.written += static_cast<index_t>(bytes.size());
}

std::uint64_t safetensors_writer::finish() {
  std::vector<std::uint64_t> sums;
  sums.reserve(tensors_.size());
  for (index_t const position : layout_.order) {
    progress const& done = progress_[static_cast<std::size_t>(position)];
    index_t const bytes = layout_.places[static_cast<std::size_t>(position)].bytes;
    if (done.written != bytes) {
      fail(errc::invalid_argument, "[write] {}: tensor {}: {} bytes written of {}",
           escaped_path(file_.path()), quoted(at(tensors_, position).name), done.written, bytes);
    }
    sums.push_back(done.sum.value());
  }
  checksum header;
  header.add(std::as_bytes(std::span(layout_.header)));
  file_.finish([&] {
    std::vector<std::byte> buffer;
    auto const read = [&](index_t begin, std::span<std::byte> into) { file_.read(begin, into); };
    auto const expect = [&](std::uint64_t sum, index_t begin, index_t bytes, std::string_view of) {
      if (sum_of(read, begin, bytes, buffer) != sum) {
        fail(errc::io_failure, "[write] {}: {}: what was read back is not what was written",
             escaped_path(file_.path()), quoted(of));
      }
    };
    expect(header.value(), 0, static_cast<index_t>(layout_.header.size()), "header");
    for (std::size_t i = 0; i < sums.size(); ++i) {
      file_layout::place const& place = layout_.places[static_cast<std::size_t>(layout_.order[i])];
      expect(sums[i], place.begin, place.bytes, at(tensors_, layout_.order[i]).name);
    }
  });
  return combined(header.value(), sums);
}

std::uint64_t file_checksum(input_file const& file, safetensors_header const& header) {
  std::vector<std::byte> buffer;
  auto const read = [&](index_t begin, std::span<std::byte> into) { file.read(begin, into); };
  std::vector<tensor_entry> tensors(header.tensors().begin(), header.tensors().end());
  std::sort(tensors.begin(), tensors.end(), [](tensor_entry const& a, tensor_entry const& b) {
    return std::tie(a.begin, a.bytes, a.name) < std::tie(b.begin, b.bytes, b.name);
  });
  std::uint64_t const header_sum = sum_of(read, 0, header.data_begin(), buffer);
  std::vector<std::uint64_t> sums;
  sums.reserve(tensors.size());
  for (tensor_entry const& tensor : tensors) {
    sums.push_back(sum_of(read, tensor.begin, tensor.bytes, buffer));
  }
  return combined(header_sum, sums);
}

}  // namespace moe64::checkpoint
