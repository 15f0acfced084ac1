#pragma once

#include "checkpoint/dialect/module_format.hpp"
#include "moe64/index.hpp"

namespace moe64::checkpoint {

/// One axis of a matrix, cut into blocks. With `half`, each half is cut for itself and its last
/// block may be partial.
struct grid_axis {
  index_t extent = 0;
  index_t block = 1;
  index_t half = 0;  ///< 0: not cut in halves

  [[nodiscard]] constexpr index_t count() const {
    return half > 0 ? 2 * ceil_div(half, block) : ceil_div(extent, block);
  }
  /// The block of element i.
  [[nodiscard]] constexpr index_t at(index_t i) const {
    if (half == 0 || i < half) return i / block;
    return ceil_div(half, block) + (i - half) / block;
  }
  /// The first element of block b; the extent for b = count().
  [[nodiscard]] constexpr index_t begin(index_t b) const {
    if (half == 0) return b * block < extent ? b * block : extent;
    index_t const first = ceil_div(half, block);
    if (b < first) return b * block;
    index_t const within = (b - first) * block;
    return half + (within < half ? within : half);
  }
  /// One past the last element of the block of element i.
  [[nodiscard]] constexpr index_t end_at(index_t i) const { return begin(at(i) + 1); }
};

/// A matrix and its scales as they lie in a file: rows of storage are outputs, or inputs where it
/// is transposed. Scale (rows.at(r), cols.at(c)) of a row-major grid belongs to element (r, c).
struct storage_grid {
  grid_axis rows;
  grid_axis cols;     ///< its extent is what counts ...
  index_t pitch = 0;  ///< ... and this many elements lie in a row

  [[nodiscard]] constexpr index_t scales() const { return checked_mul(rows.count(), cols.count()); }
  [[nodiscard]] constexpr index_t elements() const { return checked_mul(rows.extent, pitch); }
};

/// Of one expert's slice. Without scales it is one block.
[[nodiscard]] storage_grid storage_of(module_format const& format);

}  // namespace moe64::checkpoint
