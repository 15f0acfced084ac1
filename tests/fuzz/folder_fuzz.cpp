// Any files in a folder are either a checkpoint, every tensor of which can be read, or a typed
// error. The input is a list of files: a byte for which one, two for its length, its content.

#include "checkpoint/files/folder.hpp"

#include "moe64/error.hpp"
#include "support/memory_files.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

using moe64::index_t;
using moe64::checkpoint::folder;
using moe64::checkpoint::tensor_entry;

constexpr std::array<std::string_view, 8> names{
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors",
    "config.json",
    "hf_quant_config.json",
    "params.json",
    "other.safetensors",
};

moe64::test::memory_files files_of(std::string_view input) {
  moe64::test::memory_files files;
  while (input.size() >= 3) {
    auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(input[i]); };
    std::string_view const name = names[byte(0) % names.size()];
    std::size_t const length = byte(1) + std::size_t{256} * byte(2);
    input.remove_prefix(3);
    files.contents["/m/" + std::string(name)] = input.substr(0, length);
    input.remove_prefix(std::min(length, input.size()));
  }
  return files;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const files = files_of({reinterpret_cast<char const*>(data), size});
  try {
    folder const opened = folder::open("/m", {.files = &files});
    index_t bytes = 0;
    for (tensor_entry const& tensor : opened.tensors()) {
      std::vector<std::byte> content(static_cast<std::size_t>(tensor.bytes));
      opened.read(tensor, 0, content);
      bytes += tensor.bytes;
      if (opened.find(tensor.name) != &tensor) std::abort();
    }
    if (bytes > static_cast<index_t>(size)) std::abort();
  } catch (moe64::error const& refused) {
    bool const typed = refused.code() == moe64::errc::malformed_file ||
                       refused.code() == moe64::errc::io_failure ||
                       refused.code() == moe64::errc::invalid_argument;
    if (!typed) std::abort();
  }
  return 0;
}
