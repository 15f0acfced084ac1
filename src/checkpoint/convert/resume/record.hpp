#pragma once

#include "checkpoint/files/io.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// How a file that was written is known again: by its first bytes, of a safetensors file the header
/// (which names every tensor and the version of moe64), of any other all.
struct file_record {
  std::string name;
  index_t bytes = 0;       ///< of the file
  index_t head_bytes = 0;  ///< what the checksum covers
  std::uint64_t head = 0;
};
/// Of a file that begins with `head`, and for now has nothing else.
[[nodiscard]] file_record record_of(std::string_view name, std::span<std::byte const> head);

/// What stands in an output folder, and whose it is.
struct output_survey {
  struct file {
    std::string name;
    index_t bytes = 0;
  };
  std::vector<file> written;         ///< by the earlier run, and as its manifest says
  std::vector<file> partial;         ///< files of the earlier run that it did not finish
  std::vector<std::string> foreign;  ///< everything else, in order of names

  [[nodiscard]] bool has_written(std::string_view name) const noexcept;
};

struct earlier_run;

/// Looks at every file of the folder, which need not exist. Without an earlier run everything is
/// foreign but what convert leaves when it ends before its first manifest.
[[nodiscard]] output_survey survey_output(file_system const& files, std::string const& folder,
                                          earlier_run const* earlier);

}  // namespace moe64::checkpoint
