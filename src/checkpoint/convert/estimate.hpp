#pragma once

#include "checkpoint/convert/tiles.hpp"
#include "moe64/device.hpp"

namespace moe64::checkpoint {

struct time_estimate {
  double seconds = 0;         ///< to read and convert everything that the plan writes
  index_t sampled_bytes = 0;  ///< of output that were made to find out, and thrown away
};

/// Converts tiles from all over the plan for a moment, on `workers` threads of the stream, and
/// writes nothing. Writing is not in it.
[[nodiscard]] time_estimate estimate_time(folder const& files, conversion_plan const& plan,
                                          tile_memory const& memory, index_t workers, stream where);

}  // namespace moe64::checkpoint
