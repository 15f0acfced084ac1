// Any bytes are either a header, whose tensors lie inside the file, do not overlap and fill it, or
// a typed error.

#include "checkpoint/safetensors/header.hpp"

#include "moe64/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <tuple>
#include <vector>

namespace {

using moe64::index_t;
using moe64::checkpoint::safetensors_header;
using moe64::checkpoint::tensor_entry;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(safetensors_header const& header, index_t file_bytes) {
  std::vector<tensor_entry> tensors(header.tensors().begin(), header.tensors().end());
  for (std::size_t i = 1; i < tensors.size(); ++i) require(tensors[i - 1].name < tensors[i].name);
  std::sort(tensors.begin(), tensors.end(), [](tensor_entry const& a, tensor_entry const& b) {
    return std::tie(a.begin, a.bytes) < std::tie(b.begin, b.bytes);
  });
  index_t at = header.data_begin();
  for (tensor_entry const& tensor : tensors) {
    require(tensor.begin == at && tensor.bytes >= 0 && tensor.bytes <= file_bytes - at);
    at += tensor.bytes;
  }
  require(at == file_bytes);
}

}  // namespace

/// The first byte chooses the options, the second how many bytes of data follow the header.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size < 2) return 0;
  moe64::checkpoint::header_options options;
  options.lenient = (data[0] & 1) != 0;
  std::string_view const text(reinterpret_cast<char const*>(data + 2), size - 2);
  index_t const file_bytes = 8 + static_cast<index_t>(text.size()) + data[1];
  try {
    check(safetensors_header::parse(text, "fuzz", file_bytes, options), file_bytes);
  } catch (moe64::error const& refused) {
    require(refused.code() == moe64::errc::malformed_file);
  }
  return 0;
}
