#pragma once

#include "checkpoint/convert/parallel_work.hpp"
#include "checkpoint/convert/resume/record.hpp"
#include "checkpoint/convert/tiles.hpp"
#include "checkpoint/files/output_file.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace moe64::checkpoint {

/// What is known about a file of the output once it is whole.
struct shard_record {
  file_record file;
  std::uint64_t checksum = 0;  ///< of the header and of every tile
  number_counts counts;
  std::vector<std::string> anomalies;  ///< a few tensors with counts; safe to print
  /// Tensors that an adapter changed, in order of jobs.
  std::vector<std::pair<std::string, delta_sums>> merged;
};

/// Where a shard's tiles lie in its file.
class shard_layout {
 public:
  shard_layout(planned_shard const& shard, metadata_list const& metadata);

  [[nodiscard]] planned_shard const& shard() const noexcept { return shard_; }
  [[nodiscard]] file_layout const& file() const noexcept { return file_; }
  /// In the order of the file, with places in it.
  [[nodiscard]] std::vector<tile> const& tiles() const noexcept { return tiles_; }
  [[nodiscard]] conversion_job const& job_of(tile const& piece) const {
    return shard_.jobs[static_cast<std::size_t>(piece.job)];
  }
  [[nodiscard]] index_t largest_tile() const noexcept;

  /// One number for header and tiles, of which the sums are given two by two: values, scales.
  [[nodiscard]] std::uint64_t combined(std::vector<std::uint64_t> const& sums) const;

 private:
  planned_shard const& shard_;
  file_layout file_;
  std::vector<tile> tiles_;
};

/// Writes one shard: tiles from all threads, then fsync, read-back and its name.
class shard_writer {
 public:
  shard_writer(output_folder const& folder, shard_layout layout, bool replace);

  /// All tiles, each worker on a thread of the stream.
  void run(std::vector<std::unique_ptr<tile_worker>> const& workers, stream where,
           progress_counter& progress);

  /// Checks that the inputs are what they were, makes the file permanent and reads it back, on at
  /// most `readers` threads of the stream, each with a buffer of the largest tile. `before_name` is
  /// told of the file once it is whole, before it has its name.
  [[nodiscard]] shard_record finish(folder const& inputs, index_t readers, stream where,
                                    std::function<void(shard_record const&)> const& before_name);

 private:
  void run_tile(tile_worker& worker, std::size_t position);
  /// The sums of each job's tiles, which do not depend on who did them.
  [[nodiscard]] std::vector<std::pair<std::string, delta_sums>> merged_tensors() const;

  shard_layout layout_;
  output_file file_;
  std::vector<std::uint64_t> sums_;
  std::vector<number_counts> counts_;
  std::vector<delta_sums> merged_;  ///< by tile
};

/// Whether the file of a shard is there and is what the record says. Its bytes are read on the
/// threads of the stream, at most `readers` at once.
[[nodiscard]] bool is_whole(output_folder const& folder, shard_layout const& layout,
                            shard_record const& record, index_t readers, stream where);

}  // namespace moe64::checkpoint
