#pragma once

#include "checkpoint/files/output_folder.hpp"
#include "checkpoint/safetensors/writer.hpp"
#include "checkpoint/synth/plan.hpp"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace moe64::checkpoint {

/// The files of a planned checkpoint, all open at once, so that a matrix and its scale can be
/// written together wherever they lie.
class synth_files {
 public:
  /// errc::invalid_argument when the folder holds something, or the plan's fault needs more files
  /// than there are.
  synth_files(output_folder const& folder, synth_plan const& plan, index_t shard_bytes,
              std::uint64_t seed);

  [[nodiscard]] index_t count() const noexcept { return static_cast<index_t>(names_.size()); }
  [[nodiscard]] index_t bytes() const noexcept { return total_; }
  [[nodiscard]] index_t tensors() const noexcept { return tensors_; }

  /// The next bytes of a tensor of the plan. Different tensors from different threads at once.
  void append(index_t tensor, std::span<std::byte const> bytes);

  /// Makes everything permanent: tensors, documents, the index last. Then plants the faults of
  /// files.
  void finish();

 private:
  struct place {
    index_t shard = -1;
    index_t position = 0;
  };
  void assign(index_t shard_bytes);
  void open(std::uint64_t seed);
  void write_index();
  void plant_in_files();

  output_folder const& folder_;
  synth_plan const& plan_;
  std::vector<place> places_;  // by tensor of the plan
  index_t copied_ = -1;        // duplicate_tensor: this one is also in the first or second file
  place copy_;
  std::vector<std::vector<new_tensor>> contents_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<safetensors_writer>> writers_;
  index_t total_ = 0;
  index_t tensors_ = 0;
};

}  // namespace moe64::checkpoint
