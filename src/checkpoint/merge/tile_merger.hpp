#pragma once

#include "checkpoint/merge/factors.hpp"
#include "checkpoint/merge/low_rank.hpp"
#include "moe64/quant.hpp"

namespace moe64::checkpoint {

/// Bytes that a tile_merger needs for a tile.
struct merge_memory {
  factor_memory factors;
  index_t deltas = 0;
  index_t written = 0;

  void cover(merge_memory const& other) noexcept;
  [[nodiscard]] index_t total() const noexcept { return factors.total() + deltas + written; }
};
/// Of a region whose numbers are widened, or quantised.
[[nodiscard]] merge_memory memory_of(delta_region const& region, bool quantised);

/// Adds an adapter to the numbers of one tile after the other, and measures how much of it is left
/// once they are written in their type.
class tile_merger {
 public:
  tile_merger(weight_deltas const& deltas, merge_memory const& memory);

  /// The sums of numbers [rows, cols] and deltas in the type of `out`, rounded once.
  [[nodiscard]] delta_sums widen(delta_region const& region, float* numbers,
                                 tensor_view const& out);
  /// numbers + deltas in place, where rows are `pitch` numbers apart.
  void add(delta_region const& region, float* numbers, index_t pitch);
  /// After add(): of the codes that were made of them.
  [[nodiscard]] delta_sums measure(delta_region const& region, float const* numbers, index_t pitch,
                                   quantized_view const& codes);

 private:
  factor_reader reader_;
  merge_memory memory_;
  piece_buffer deltas_;
  piece_buffer written_;
};

}  // namespace moe64::checkpoint
