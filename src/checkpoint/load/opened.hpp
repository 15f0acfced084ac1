#pragma once

#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "checkpoint/files/folder.hpp"
#include "moe64/checkpoint.hpp"

namespace moe64 {

/// What stands behind a checkpoint_reader.
struct checkpoint_reader::state {
  std::string path;
  checkpoint::folder files;
  checkpoint::resolved_checkpoint resolved;
};
}  // namespace moe64
