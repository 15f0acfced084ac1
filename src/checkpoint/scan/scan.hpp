#pragma once

#include "checkpoint/convert/parallel_work.hpp"
#include "checkpoint/scan/plan.hpp"
#include "checkpoint/scan/scale_counts.hpp"
#include "checkpoint/scan/value_sample.hpp"
#include "checkpoint/scan/zero_run.hpp"

#include <array>
#include <optional>
#include <vector>

namespace moe64::checkpoint {

/// What was found out about one item.
struct scan_result {
  value_counts values;
  scale_counts scales;
  std::vector<double> medians;   ///< of the scales of its bands
  index_t wrong_zeros = 0;       ///< scales that are zero while a code of their block is not
  std::optional<double> global;  ///< as stored
  std::optional<std::array<index_t, 2>> stated;  ///< of a weight_shape of two integers
  value_sample sample;                  ///< of numbers as they are meant, but for the global scale
  std::vector<std::string> unreadable;  ///< why, of bands that could not be read
  zero_stretch zeros;                   ///< in bytes of the item; of what is judged at all

  [[nodiscard]] double median_scale() const;  ///< before the global scale; 0: none
};

/// Reads everything that the plan names, once, and counts. What the disk does not give is said in
/// the result of its item; errc::io_failure when a file is not the one that was opened. Results are
/// in the order of the items. Memory: a piece and the scales of a band per worker, and a bit per
/// scale of a band that has a zero among them.
[[nodiscard]] std::vector<scan_result> run_scan(folder const& files, scan_plan const& plan,
                                                stream where, progress_counter& progress);

}  // namespace moe64::checkpoint
