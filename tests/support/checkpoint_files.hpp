#pragma once

#include "support/checkpoint_builder.hpp"
#include "support/temp_folder.hpp"

#include <functional>
#include <string>
#include <string_view>

namespace moe64::test {

/// Which shard a tensor goes to, from 0 on.
using shard_rule = std::function<index_t(std::string const& name)>;

/// Values and everything else apart.
[[nodiscard]] index_t scales_apart(std::string const& name);

/// Writes what a builder describes as a folder of `shards` safetensors files with an index and its
/// configs. Bytes are those of the builder, but for `weight_shape`, which is made true to the
/// extents of the cases.
void write_checkpoint(temp_folder const& into, checkpoint_builder const& from,
                      shard_rule const& shard_of = scales_apart, index_t shards = 2);

/// "model-00002-of-00002.safetensors"
[[nodiscard]] std::string shard_name(index_t shard, index_t shards = 2);

}  // namespace moe64::test
