#pragma once

#include "checkpoint/files/io.hpp"
#include "moe64/index.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace moe64::checkpoint {

/// A regular file, open for reading. Calls that were interrupted or cut short are completed;
/// everything else is errc::io_failure naming the file. `const` members may be called from several
/// threads at once.
class input_file {
 public:
  /// Refuses folders, FIFOs, devices and links that the rule does not allow; empty when there is
  /// no such file.
  [[nodiscard]] static std::optional<input_file> open_if_present(file_system const& files,
                                                                 std::string const& path,
                                                                 link_rule links);
  /// The same, but a missing file is an error.
  [[nodiscard]] static input_file open(file_system const& files, std::string const& path,
                                       link_rule links);

  input_file(input_file&& other) noexcept;
  input_file& operator=(input_file&& other) noexcept;
  input_file(input_file const&) = delete;
  input_file& operator=(input_file const&) = delete;
  ~input_file();

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] file_status const& status() const noexcept { return status_; }  ///< when opened
  [[nodiscard]] index_t bytes() const noexcept { return status_.bytes; }

  /// Fills `into` from `offset` on, in pieces of at most 16 MiB. A file that ends before is one
  /// that shrank: an error with both sizes.
  void read(index_t offset, std::span<std::byte> into) const;

  /// Maps the whole file; then read() copies from there, and fails when the size has changed before
  /// or during the copy.
  void map();
  [[nodiscard]] bool is_mapped() const noexcept { return mapping_ != nullptr; }

  /// Fails when size or time of the file are not what they were when it was opened.
  void check_unchanged() const;

  /// The whole file as text; errc::malformed_file when it is longer than `limit`.
  [[nodiscard]] std::string read_text(index_t limit) const;

 private:
  input_file(file_system const& files, std::string path) : files_(&files), path_(std::move(path)) {}
  void close() noexcept;
  void check_range(index_t offset, index_t bytes) const;
  void check_size() const;
  /// One piece, from the mapping where there is one; the bytes read, or a negative errno.
  [[nodiscard]] index_t read_piece(std::span<std::byte> into, index_t offset) const;

  file_system const* files_;
  std::string path_;
  int descriptor_ = -1;
  file_status status_;
  std::byte const* mapping_ = nullptr;
};

}  // namespace moe64::checkpoint
