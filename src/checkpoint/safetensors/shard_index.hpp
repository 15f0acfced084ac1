#pragma once

#include "checkpoint/findings/findings.hpp"
#include "moe64/index.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

struct index_options {
  index_t max_bytes = index_t{256} << 20;
  index_t max_files = 10'000;
  index_t max_tensors = 10'000'000;
  index_t max_depth = 8;
};

/// What model.safetensors.index.json says: which file holds which tensor. File names are plain
/// names that end with ".safetensors"; no tensor is there twice.
class shard_index {
 public:
  struct entry {
    std::string_view name;
    index_t file;  ///< position in files()
  };

  /// errc::malformed_file when it breaks a rule; `file_name` is for messages.
  [[nodiscard]] static shard_index parse(std::string_view text, std::string_view file_name,
                                         index_options const& options = {});

  [[nodiscard]] std::span<std::string const> files() const noexcept { return files_; }  ///< sorted
  [[nodiscard]] std::span<entry const> entries() const noexcept { return entries_; }    ///< by name
  /// Bytes of all tensors, where the file says so and it is a whole number.
  [[nodiscard]] std::optional<index_t> total_size() const noexcept { return total_size_; }
  [[nodiscard]] std::vector<finding> const& warnings() const noexcept { return warnings_; }

 private:
  std::vector<char> names_;
  std::vector<std::string> files_;
  std::vector<entry> entries_;
  std::optional<index_t> total_size_;
  std::vector<finding> warnings_;
};

/// The text of an index: entries in the given order, files by position in `files`.
[[nodiscard]] std::string shard_index_text(std::span<std::string const> files,
                                           std::span<shard_index::entry const> entries,
                                           index_t total_size);

/// "model-00002-of-00005.safetensors" for stem "model", number 2 of 5.
[[nodiscard]] std::string shard_file_name(std::string_view stem, index_t number, index_t count);

/// The parts of such a name; empty for any other name.
struct shard_number {
  std::string_view stem;
  index_t number;
  index_t count;
};
[[nodiscard]] std::optional<shard_number> parse_shard_file_name(std::string_view name) noexcept;

}  // namespace moe64::checkpoint
