#pragma once

#include "checkpoint/opened.hpp"
#include "checkpoint/output_folder.hpp"
#include "moe64/convert.hpp"

#include <string>
#include <vector>

namespace moe64::checkpoint {

/// Where a conversion writes, and how.
struct convert_environment {
  file_system const& files;
  bool background = true;  ///< a shard is made permanent while the next one is written
};

/// convert() of include/moe64/convert.hpp.
[[nodiscard]] convert_report convert_files(checkpoint_reader::state const& from,
                                           std::string const& out, convert_options const& options,
                                           stream where, progress_report const& progress,
                                           convert_environment const& environment);

/// Files of the source folder that belong to no tensor: tokenizer, templates, licences. Weights in
/// other formats, hidden files and folders stay behind; `notes` says so.
[[nodiscard]] std::vector<std::string> side_files_of(file_system const& files,
                                                     std::string const& folder,
                                                     std::vector<std::string>& notes);

/// One file, through a small buffer. False, with a note, when it may not be read.
[[nodiscard]] bool copy_side_file(file_system const& files, std::string const& folder,
                                  std::string const& name, output_folder const& out,
                                  std::vector<std::string>& notes);

}  // namespace moe64::checkpoint
