#pragma once

#include "checkpoint/files/folder.hpp"
#include "checkpoint/findings/findings.hpp"
#include "checkpoint/safetensors/shard_index.hpp"

#include <optional>
#include <string>
#include <vector>

namespace moe64::checkpoint {

/// Which files of a folder are the checkpoint.
struct chosen_files {
  std::optional<shard_index> index;
  std::string index_name;
  std::vector<std::string> shards;  ///< sorted
  std::vector<finding> warnings;
};

/// An index, else model.safetensors, else one whole set of numbered shards, else every safetensors
/// file. Where that leaves a choice it is an error that lists the candidates. `base` is the path of
/// the folder with a slash.
[[nodiscard]] chosen_files choose_files(file_system const& files, std::string const& base,
                                        open_options const& options);

}  // namespace moe64::checkpoint
