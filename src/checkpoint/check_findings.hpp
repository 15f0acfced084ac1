#pragma once

#include "checkpoint/scan.hpp"
#include "moe64/check.hpp"

#include <span>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// A scan with all that is needed to judge it.
struct scanned {
  resolved_checkpoint const& resolved;
  scan_plan const& plan;
  std::span<scan_result const> results;
};

/// What the global scale does to the scales of a matrix; 1 without one, 0 when it is no number.
[[nodiscard]] double global_factor(scan_item const& item, scan_result const& result);
[[nodiscard]] index_t wrong_scales(scan_result const& result);

[[nodiscard]] std::vector<layer_statistics> statistics_of(scanned const& all);
/// The part of the totals that comes from values.
void add_totals(scanned const& all, check_totals& into);

/// Judges single tensors, then the checkpoint as a whole.
void find_in_values(scanned const& all, std::span<layer_statistics const> layers,
                    double median_scale, diagnostics& found);

/// What moe64::check does.
[[nodiscard]] check_report check_opened(checkpoint_reader::state const& opened,
                                        check_options const& options, stream where,
                                        progress_report const& progress);

}  // namespace moe64::checkpoint
