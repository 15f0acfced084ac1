#pragma once

#include "checkpoint/scan/scan.hpp"
#include "moe64/check.hpp"

#include <span>
#include <string>
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

/// "tensor 'NAME'", and of a stack which expert.
[[nodiscard]] std::string text_of(scan_item const& item);
/// A matrix of weights: of an expert, or quantised.
[[nodiscard]] bool is_matrix(scan_item const& item) noexcept;
/// Any other weight of two extents, in plain numbers.
[[nodiscard]] bool is_plain_weight(scan_item const& item) noexcept;
/// Root mean square of the weights; 0 where there are none, or only zeros.
[[nodiscard]] double weight_rms(scan_item const& item, scan_result const& result);
[[nodiscard]] double median_of(std::vector<double>& values);  ///< 0 of none

/// Zeros and repetitions within one tensor.
void judge_contents(scan_item const& item, scan_result const& result, findings& found);
/// The sizes of weights held against each other: experts, projections, layers.
void compare_sizes(scanned const& all, std::span<layer_statistics const> layers, findings& found);
/// Scales that are all 1, and experts that are the same.
void find_repetitions(scanned const& all, findings& found);
/// A tensor that the model's architecture must have and that is not there, or of layers not.
struct missing_tensor {
  std::string_view part;  ///< "router"
  std::string_view source;
  std::vector<std::string> names;
  std::vector<index_t> layers;  ///< of each; -1: of none
  index_t wanted = 0;           ///< how many there should be
};
/// Nothing for a single file, and for a model type that the table does not have.
[[nodiscard]] std::vector<missing_tensor> missing_tensors(checkpoint_reader::state const& opened);
void find_missing_tensors(checkpoint_reader::state const& opened, findings& found);

/// Judges single tensors, then the checkpoint as a whole.
void find_in_values(scanned const& all, std::span<layer_statistics const> layers,
                    double median_scale, findings& found);

/// What moe64::check does.
[[nodiscard]] check_report check_opened(checkpoint_reader::state const& opened,
                                        check_options const& options, stream where,
                                        progress_report const& progress);

}  // namespace moe64::checkpoint
