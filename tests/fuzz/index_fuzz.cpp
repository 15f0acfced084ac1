// Any text is either an index, which reads back from what is written of it, or a typed error.

#include "checkpoint/safetensors/shard_index.hpp"
#include "moe64/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

using moe64::checkpoint::shard_index;

void require(bool holds) {
  if (!holds) std::abort();
}

bool same(shard_index const& a, shard_index const& b) {
  if (a.entries().size() != b.entries().size() || a.files().size() != b.files().size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.entries().size(); ++i) {
    if (a.entries()[i].name != b.entries()[i].name || a.entries()[i].file != b.entries()[i].file) {
      return false;
    }
  }
  for (std::size_t i = 0; i < a.files().size(); ++i) {
    if (a.files()[i] != b.files()[i] || a.files()[i].find('/') != std::string::npos) return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  try {
    shard_index const index = shard_index::parse(text, "fuzz");
    std::string const written =
        moe64::checkpoint::shard_index_text(index.files(), index.entries(), 0);
    require(same(index, shard_index::parse(written, "written")));
  } catch (moe64::error const& refused) {
    require(refused.code() == moe64::errc::malformed_file);
  }
  return 0;
}
