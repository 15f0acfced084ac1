#pragma once

#include "checkpoint/convert/resume/record.hpp"
#include "checkpoint/files/output_folder.hpp"
#include "checkpoint/load/opened.hpp"
#include "checkpoint/merge/deltas.hpp"
#include "checkpoint/merge/low_rank.hpp"
#include "moe64/convert.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe64::checkpoint {

/// Where a conversion writes, and how.
struct convert_environment {
  file_system const& files;
  bool background = true;  ///< a shard is made permanent while the next one is written
  weight_deltas const* deltas = nullptr;  ///< what is merged into the weights
  std::vector<std::pair<std::string, delta_sums>>* merged = nullptr;  ///< out: by tensor
};

/// convert() of include/moe64/convert.hpp.
[[nodiscard]] convert_report convert_files(checkpoint_reader::state const& from,
                                           std::string const& out, convert_options const& options,
                                           stream where, progress_report const& progress,
                                           convert_environment const& environment);

/// preview_conversion() of include/moe64/convert.hpp.
[[nodiscard]] convert_preview preview_files(checkpoint_reader::state const& from,
                                            std::string const& out, convert_options const& options,
                                            stream where, convert_environment const& environment);

/// Whether a file of this name says how the tensors beside it are read: a conversion writes its
/// own, and what others say is not true of its result.
[[nodiscard]] bool describes_tensors(std::string_view name) noexcept;

/// Files of the source folder that belong to no tensor: tokenizer, templates, licences. Weights in
/// other formats or outside of the checkpoint, hidden files and folders stay behind; `notes` says
/// so.
[[nodiscard]] std::vector<std::string> side_files_of(file_system const& files, folder const& source,
                                                     std::vector<std::string>& notes);

/// Where a side file goes.
struct side_file_target {
  output_folder const& out;
  bool replace = false;  ///< an earlier run wrote the one that is there
  std::function<void(file_record const&)> before_name;  ///< told once the copy is whole
};
/// One file, through a small buffer. False, with a note, when it may not be read.
[[nodiscard]] bool copy_side_file(file_system const& files, std::string const& folder,
                                  std::string const& name, side_file_target const& target,
                                  std::vector<std::string>& notes);

}  // namespace moe64::checkpoint
