#pragma once

#include "checkpoint/convert/files.hpp"
#include "moe64/merge.hpp"

#include <string>

namespace moe64::checkpoint {

/// merge() of include/moe64/merge.hpp, with the files of the environment.
[[nodiscard]] merge_report merge_files(checkpoint_reader::state const& base,
                                       std::string const& adapter, std::string const& out,
                                       merge_options const& options, stream where,
                                       progress_report const& progress,
                                       convert_environment environment);

}  // namespace moe64::checkpoint
