#pragma once

#include "checkpoint/convert_shard.hpp"

#include <optional>
#include <string>
#include <vector>

namespace moe64::checkpoint {

/// What a conversion depends on. Two with the same identity write the same bytes.
struct conversion_identity {
  std::string library;  ///< its version
  std::string options;  ///< a checksum of target, shard size and assumptions
  std::string inputs;   ///< a checksum of the list below and of the configs
  std::string text;     ///< the first line of the manifest: the above, and size, time and header of
                        ///< every input file
};
[[nodiscard]] conversion_identity identity_of(folder const& files, convert_options const& options,
                                              std::vector<std::string> const& assumed,
                                              std::string const& configs);

/// The manifest of an earlier run, as far as it can be read.
struct earlier_run {
  conversion_identity identity;
  std::vector<shard_record> shards;
  bool complete = false;
};

inline constexpr std::string_view manifest_name = ".moe64-convert.jsonl";

/// Empty when there is none, or none that can be understood.
[[nodiscard]] std::optional<earlier_run> read_manifest(output_folder const& folder);

/// Lines of JSON, each permanent before the next step begins.
class manifest_writer {
 public:
  /// Replaces what is there by the identity and the shards that are kept.
  manifest_writer(output_folder const& folder, conversion_identity const& identity,
                  std::vector<shard_record> const& kept);
  manifest_writer(manifest_writer const&) = delete;
  manifest_writer& operator=(manifest_writer const&) = delete;
  ~manifest_writer();

  void add(shard_record const& record);
  void complete();

 private:
  void append(std::string const& line);

  output_folder const& folder_;
  std::string path_;
  int descriptor_ = -1;
  index_t end_ = 0;
};

}  // namespace moe64::checkpoint
