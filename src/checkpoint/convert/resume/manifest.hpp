#pragma once

#include "checkpoint/convert/resume/identity.hpp"
#include "checkpoint/convert/shard.hpp"

#include <optional>
#include <string>
#include <vector>

namespace moe64::checkpoint {

inline constexpr std::string_view manifest_name = ".moe64-convert.jsonl";
inline constexpr index_t manifest_format = 2;

/// The manifest of an earlier run, as far as it can be read.
struct earlier_run {
  conversion_identity identity;
  std::vector<std::string> outputs;  ///< names that it may have written partial files for
  std::vector<file_record> files;    ///< what it has written; the last one of a name counts
  std::vector<shard_record> shards;  ///< those of them that are shards
  bool complete = false;

  [[nodiscard]] file_record const* file(std::string_view name) const noexcept;
};

/// Empty when there is none. errc::invalid_argument when there is one that cannot be understood:
/// then nobody knows whose the files beside it are.
[[nodiscard]] std::optional<earlier_run> read_manifest(file_system const& files,
                                                       std::string const& folder);

/// Lines of JSON, each permanent before the next step begins. A file is written down before it gets
/// its name, so that nothing stands under a name that is not known to be this conversion's.
class manifest_writer {
 public:
  /// Replaces what is there by the identity, the names that are going to be written, and whatever
  /// is known of files of earlier runs that still stand.
  manifest_writer(output_folder const& folder, conversion_identity const& identity,
                  std::vector<std::string> const& outputs, earlier_run const& kept);
  manifest_writer(manifest_writer const&) = delete;
  manifest_writer& operator=(manifest_writer const&) = delete;
  ~manifest_writer();

  void add(shard_record const& record);
  void add(file_record const& record);
  void complete();

 private:
  void append(std::string const& line);

  output_folder const& folder_;
  std::string path_;
  int descriptor_ = -1;
  index_t end_ = 0;
};

}  // namespace moe64::checkpoint
