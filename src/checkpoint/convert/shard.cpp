#include "checkpoint/convert/shard.hpp"

#include "checkpoint/files/checksum.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <atomic>

namespace moe64::checkpoint {
namespace {

constexpr std::size_t named_tensors = 8;

std::uint64_t sum_of(std::span<std::byte const> bytes) {
  checksum sum;
  sum.add(bytes);
  return sum.value();
}

/// The sums of all tiles of a file that `read` reads.
template <class Read>
std::vector<std::uint64_t> sums_of(shard_layout const& layout, Read const& read, index_t readers,
                                   stream where) {
  std::vector<std::uint64_t> sums(2 * layout.tiles().size());
  index_t const largest = layout.largest_tile();
  std::atomic<std::size_t> next{0};
  run_tasks(where, std::clamp<index_t>(readers, 1, workers_of(where)), [&](index_t) {
    piece_buffer memory(largest);
    auto const sum_part = [&](index_t at, index_t bytes) -> std::uint64_t {
      if (bytes == 0) return 0;
      std::span<std::byte> const into = memory.first(bytes);
      read(at, into);
      return sum_of(into);
    };
    for (;;) {
      std::size_t const position = next.fetch_add(1, std::memory_order_relaxed);
      if (position >= layout.tiles().size()) return;
      tile const& piece = layout.tiles()[position];
      sums[2 * position] = sum_part(piece.values_at, piece.values_bytes);
      sums[2 * position + 1] = sum_part(piece.scales_at, piece.scales_bytes);
    }
  });
  return sums;
}

template <class Read>
bool has_header(shard_layout const& layout, Read const& read) {
  std::string header(layout.file().header.size(), '\0');
  read(0, std::as_writable_bytes(std::span(header)));
  return header == layout.file().header;
}

}  // namespace

shard_layout::shard_layout(planned_shard const& shard, metadata_list const& metadata)
    : shard_(shard), file_(lay_out(shard.tensors, metadata)) {
  for_each_tile(shard, [&](tile piece) {
    conversion_job const& job = job_of(piece);
    piece.values_at += file_.places[static_cast<std::size_t>(job.values)].begin;
    if (job.scales >= 0) {
      piece.scales_at += file_.places[static_cast<std::size_t>(job.scales)].begin;
    }
    tiles_.push_back(piece);
  });
  std::stable_sort(tiles_.begin(), tiles_.end(), [](tile const& left, tile const& right) {
    return left.values_at < right.values_at;
  });
}

index_t shard_layout::largest_tile() const noexcept {
  index_t bytes = 0;
  for (tile const& piece : tiles_) {
    bytes = std::max({bytes, piece.values_bytes, piece.scales_bytes});
  }
  return bytes;
}

std::uint64_t shard_layout::combined(std::vector<std::uint64_t> const& sums) const {
  checksum all;
  all.add(std::as_bytes(std::span(file_.header)));
  all.add(std::as_bytes(std::span(sums)));
  return all.value();
}

shard_writer::shard_writer(output_folder const& folder, shard_layout layout, bool replace)
    : layout_(std::move(layout)),
      file_(folder, layout_.shard().name, layout_.file().bytes, replace),
      sums_(2 * layout_.tiles().size()),
      counts_(layout_.tiles().size()),
      merged_(layout_.tiles().size()) {
  file_.write(0, std::as_bytes(std::span(layout_.file().header)));
}

void shard_writer::run_tile(tile_worker& worker, std::size_t position) {
  tile const& piece = layout_.tiles()[position];
  tile_worker::result const done = worker.run(layout_.job_of(piece), piece);
  sums_[2 * position] = sum_of(done.values);
  if (!done.scales.empty()) sums_[2 * position + 1] = sum_of(done.scales);
  counts_[position] = done.counts;
  merged_[position] = done.merged;
  file_.write(piece.values_at, done.values);
  if (!done.scales.empty()) file_.write(piece.scales_at, done.scales);
}

void shard_writer::run(std::vector<std::unique_ptr<tile_worker>> const& workers, stream where,
                       progress_counter& progress) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
  run_tasks(where, static_cast<index_t>(workers.size()), [&](index_t which) {
    tile_worker& worker = *workers[static_cast<std::size_t>(which)];
    try {
      while (!stopped.load(std::memory_order_relaxed)) {
        std::size_t const position = next.fetch_add(1, std::memory_order_relaxed);
        if (position >= layout_.tiles().size()) return;
        run_tile(worker, position);
        tile const& piece = layout_.tiles()[position];
        progress.add(piece.values_bytes + piece.scales_bytes);
      }
    } catch (...) {
      stopped.store(true, std::memory_order_relaxed);
      throw;
    }
  });
}

shard_record shard_writer::finish(folder const& inputs, index_t readers, stream where,
                                  std::function<void(shard_record const&)> const& before_name) {
  for (std::size_t i = 0; i < inputs.shards().size(); ++i) {
    inputs.check_unchanged(static_cast<index_t>(i));
  }
  shard_record record;
  record.file = record_of(layout_.shard().name, std::as_bytes(std::span(layout_.file().header)));
  record.file.bytes = layout_.file().bytes;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    number_counts const& found = counts_[i];
    record.counts.overflows += found.overflows;
    record.counts.not_finite += found.not_finite;
    if (found.overflows + found.not_finite == 0 || record.anomalies.size() >= named_tensors) {
      continue;
    }
    tile const& piece = layout_.tiles()[i];
    auto const tensor = static_cast<std::size_t>(layout_.job_of(piece).values);
    record.anomalies.push_back(
        fmt::format("tensor {}, rows {} to {}: {} overflows, {} other numbers that are not finite",
                    quoted(layout_.shard().tensors[tensor].name), piece.begin, piece.end - 1,
                    found.overflows, found.not_finite));
  }
  record.merged = merged_tensors();
  record.checksum = layout_.combined(sums_);
  file_.finish([&] {
    auto const read = [&](index_t at, std::span<std::byte> into) { file_.read(at, into); };
    if (!has_header(layout_, read) || sums_of(layout_, read, readers, where) != sums_) {
      fail(errc::io_failure, "[convert] {}: what was read back is not what was written",
           escaped_path(file_.path()));
    }
    before_name(record);
  });
  return record;
}

std::vector<std::pair<std::string, delta_sums>> shard_writer::merged_tensors() const {
  std::vector<conversion_job> const& jobs = layout_.shard().jobs;
  std::vector<delta_sums> sums(jobs.size());
  for (std::size_t i = 0; i < merged_.size(); ++i) {
    sums[static_cast<std::size_t>(layout_.tiles()[i].job)].add(merged_[i]);
  }
  std::vector<std::pair<std::string, delta_sums>> tensors;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].delta == nullptr) continue;
    auto const tensor = static_cast<std::size_t>(jobs[i].values);
    tensors.emplace_back(layout_.shard().tensors[tensor].name, sums[i]);
  }
  return tensors;
}

bool is_whole(output_folder const& folder, shard_layout const& layout, shard_record const& record,
              index_t readers, stream where) {
  auto const file = input_file::open_if_present(folder.files(), folder.path_of(layout.shard().name),
                                                link_rule::none);
  if (!file || file->bytes() != layout.file().bytes || record.file.bytes != file->bytes()) {
    return false;
  }
  auto const read = [&](index_t at, std::span<std::byte> into) { file->read(at, into); };
  return has_header(layout, read) &&
         layout.combined(sums_of(layout, read, readers, where)) == record.checksum;
}

}  // namespace moe64::checkpoint
