#pragma once

#include "checkpoint/convert/plan.hpp"
#include "checkpoint/merge/tile_merger.hpp"

#include <algorithm>
#include <functional>
#include <optional>

namespace moe64::checkpoint {

/// A piece of one job that is done in one go: rows [begin, end) of one output matrix; of a copy
/// bytes, of numbers elements. The cuts depend on the plan alone, so that checksums of tiles can be
/// compared with those of another run. Places count from the start of the output tensors.
struct tile {
  index_t job = 0;
  index_t slice = 0;
  index_t begin = 0;
  index_t end = 0;
  index_t values_at = 0;
  index_t values_bytes = 0;
  index_t scales_at = 0;
  index_t scales_bytes = 0;
};

void for_each_tile(planned_shard const& shard, std::function<void(tile const&)> const& visit);

/// What rows [begin, end) of an output matrix are read from. With a step, the rows between are
/// read too: see read_rows().
[[nodiscard]] stored_region region_of(conversion_job const& job, index_t slice, index_t begin,
                                      index_t end);

/// Bytes of the buffers that one tile needs.
struct tile_memory {
  index_t values = 0;   ///< as stored
  index_t scales = 0;   ///< as stored
  index_t numbers = 0;  ///< f32, before they are quantised or merged
  index_t out = 0;
  index_t out_scales = 0;
  merge_memory merge;

  void cover(tile_memory const& other) noexcept {
    values = std::max(values, other.values);
    scales = std::max(scales, other.scales);
    numbers = std::max(numbers, other.numbers);
    out = std::max(out, other.out);
    out_scales = std::max(out_scales, other.out_scales);
    merge.cover(other.merge);
  }
  [[nodiscard]] index_t total() const noexcept {
    return values + scales + numbers + out + out_scales + merge.total();
  }
};
/// Enough for every tile of the plan.
[[nodiscard]] tile_memory memory_of(conversion_plan const& plan);

struct number_counts {
  index_t overflows = 0;   ///< infinite numbers in f16
  index_t not_finite = 0;  ///< others that are not finite
};

/// Does tiles one after the other, in buffers of its own.
class tile_worker {
 public:
  tile_worker(folder const& files, conversion_plan const& plan, tile_memory const& memory);

  struct result {
    std::span<std::byte const> values;  ///< valid until the next call
    std::span<std::byte const> scales;
    number_counts counts;
    delta_sums merged;  ///< of a job with a delta
  };
  [[nodiscard]] result run(conversion_job const& job, tile const& piece);

 private:
  [[nodiscard]] delta_sums widen(conversion_job const& job, tile const& piece);
  [[nodiscard]] delta_sums quantise(conversion_job const& job, tile const& piece);
  void read(conversion_job const& job, tile const& piece, tensor_view const& out);

  folder const& files_;
  convert_target to_;
  piece_buffer values_;
  piece_buffer scales_;
  piece_buffer numbers_;
  piece_buffer out_;
  piece_buffer out_scales_;
  tile_memory memory_;
  std::optional<tile_merger> merger_;
};

}  // namespace moe64::checkpoint
