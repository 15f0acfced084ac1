#pragma once

#include "checkpoint/files/io.hpp"

#include <string>
#include <string_view>

namespace moe64::checkpoint {

inline constexpr std::string_view lock_name = ".moe64.lock";

/// The folder that holds what the path names.
[[nodiscard]] std::string parent_of(std::string path);

/// A folder that this process alone writes to. Held by a lock on the file ".moe64.lock" in it,
/// which the system releases when the process ends, however it ends.
class output_folder {
 public:
  /// Makes the folder where it is missing (its parent has to exist). errc::io_failure when another
  /// writer holds it.
  output_folder(file_system const& files, std::string path);
  output_folder(output_folder const&) = delete;
  output_folder& operator=(output_folder const&) = delete;
  ~output_folder();

  [[nodiscard]] file_system const& files() const noexcept { return files_; }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(std::string_view name) const;

  /// errc::invalid_argument when `input`, a file or folder, is this folder or a file in it under
  /// any name: what is being read must not be written.
  void refuse_input(file_status const& input, std::string_view name) const;

  /// Makes what was renamed into the folder permanent; a failure is errc::io_failure.
  void sync() const;

 private:
  void acquire();

  file_system const& files_;
  std::string path_;
  file_status status_;
  int lock_ = -1;
};

}  // namespace moe64::checkpoint
