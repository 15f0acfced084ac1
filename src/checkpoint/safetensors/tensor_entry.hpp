#pragma once

#include "checkpoint/safetensors/file_dtype.hpp"
#include "moe64/index.hpp"

#include <span>
#include <string_view>

namespace moe64::checkpoint {

/// Where a tensor lies. Name and shape live in storage of the folder (or header) that gave it.
struct tensor_entry {
  std::string_view name;
  file_dtype type = file_dtype::u8;
  std::span<index_t const> shape;  ///< [] is one element; extents are >= 0
  index_t shard = 0;               ///< position in folder::shards()
  index_t begin = 0;               ///< absolute byte in the shard's file; may be unaligned
  index_t bytes = 0;
};

}  // namespace moe64::checkpoint
