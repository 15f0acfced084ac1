#pragma once

#include "checkpoint/files/output_folder.hpp"
#include "moe64/index.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace moe64::checkpoint {

/// What a file is called until it is whole: .moe64-NAME.partial. No other program uses such names,
/// so that one that a killed process left can be told from the files of others.
[[nodiscard]] std::string partial_name(std::string_view name);

/// A file of known size that appears under its name only when it is whole and permanent. Until then
/// it has its partial name; one that is not finished is removed, and one that a killed process left
/// is replaced. Any failure is errc::io_failure and final: the file has to be written again.
class output_file {
 public:
  /// Reserves the space, so that a full disk shows now. errc::invalid_argument when the name exists
  /// and `replace` is false, now or when the file is finished.
  output_file(output_folder const& folder, std::string_view name, index_t bytes, bool replace);
  output_file(output_file const&) = delete;
  output_file& operator=(output_file const&) = delete;
  ~output_file();

  [[nodiscard]] std::string const& path() const noexcept { return path_; }  ///< the final one

  /// From several threads at once, as long as their bytes do not overlap.
  void write(index_t offset, std::span<std::byte const> from);

  /// Reads back what was written.
  void read(index_t offset, std::span<std::byte> into) const;

  /// fsync, a look at the size, `verify` (which reads back and throws when something is wrong),
  /// rename, fsync of the folder. Then the file is there for good.
  void finish(std::function<void()> const& verify);

 private:
  [[noreturn]] void refuse(std::string_view what, index_t result) const;
  void reserve();
  void require_free_name() const;

  output_folder const& folder_;
  std::string path_;
  std::string partial_path_;
  index_t bytes_;
  bool replace_;
  int descriptor_ = -1;
  bool finished_ = false;
};

/// A small file in one go, read back and compared; then `before_name` is called, then it gets its
/// name.
void write_file(output_folder const& folder, std::string_view name,
                std::span<std::byte const> bytes, bool replace,
                std::function<void()> const& before_name = {});

}  // namespace moe64::checkpoint
