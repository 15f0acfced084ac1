#pragma once

#include "checkpoint/convert/resume/manifest.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// What an output folder holds before a conversion begins, and what of it may be kept, replaced or
/// removed: files that an earlier run wrote, by its own manifest, and no other.
class earlier_output {
 public:
  earlier_output() = default;
  /// Looks, and changes nothing. errc::invalid_argument when a file is in the way of `outputs`, or
  /// of beginning anew, that no earlier run wrote, and when a finished conversion of something else
  /// is there.
  earlier_output(file_system const& files, std::string const& folder,
                 conversion_identity const& identity, std::vector<std::string> const& outputs,
                 std::vector<std::string>& notes);

  /// Of a run of the same identity, or null.
  [[nodiscard]] shard_record const* shard(std::string_view name) const noexcept;
  /// The file is there, and an earlier run wrote it.
  [[nodiscard]] bool has_written(std::string_view name) const noexcept {
    return survey_.has_written(name);
  }
  [[nodiscard]] index_t bytes_that_make_way() const noexcept;
  /// What a new manifest has to say of the files that are there.
  [[nodiscard]] earlier_run const& files() const noexcept { return run_; }

  /// What a conversion of something else has left. Its manifest stays until a new one replaces it:
  /// a run that ends in between is followed by one that knows the rest.
  void remove_outdated(output_folder const& out);

 private:
  earlier_run run_;
  output_survey survey_;
  std::string_view changed_;  ///< what is not as it was then; empty: nothing, or no earlier run
};

}  // namespace moe64::checkpoint
