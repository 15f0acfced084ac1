#pragma once

#include "moe64/checkpoint.hpp"
#include "moe64/device.hpp"
#include "moe64/export.hpp"
#include "moe64/finding.hpp"
#include "moe64/index.hpp"
#include "moe64/part.hpp"

#include <string>
#include <vector>

namespace moe64 {

struct check_options {
  bool values = true;  ///< read the tensors; otherwise only what opening found is reported
  /// Read no more than this. What opening finds is reported of the whole checkpoint.
  checkpoint_part part = {};
  /// Read every file once more as a whole, and compare its SHA-256 with what the Hub's client has
  /// written down next to it.
  bool sha256 = false;
};

/// A file of the checkpoint, by what is in it.
struct file_digest {
  std::string file;
  std::string sha256;  ///< 64 hexadecimal digits; empty when it cannot be read
  std::string stated;  ///< what it should be; empty where nothing states it
  std::string source;  ///< what states it
};

/// What the numbers of one matrix are like: of one expert, or of all experts of a projection.
struct matrix_statistics {
  index_t expert = -1;  ///< -1: all
  index_t elements = 0;
  index_t non_finite = 0;     ///< NaN codes; in plain weights also infinities
  index_t saturated = 0;      ///< codes of the largest magnitude; of int4 both ends
  index_t negative_zero = 0;  ///< of codes
  index_t scales = 0;         ///< 0: plain weights
  index_t wrong_scales = 0;   ///< not finite, negative, zero over other codes, no power of two
  /// Of the positive finite scales, the global one included; 0 where there is none. The median is
  /// that of 1024 or more evenly spaced scales where there are more, and of the experts' medians
  /// where it stands for all.
  double scale_min = 0.0;
  double scale_median = 0.0;
  double scale_max = 0.0;
  /// Largest weight, at most: largest code times largest scale. Exact for plain weights.
  double amax = 0.0;
  /// Root mean square of the weights, of 2048 or more evenly spaced ones where there are more; the
  /// median of the experts that are not all zero where it stands for all.
  double rms = 0.0;
};

struct projection_statistics {
  std::string projection;  ///< "gate", "up", "down", or "gate_up" where both are one tensor
  matrix_statistics all;
  std::vector<matrix_statistics> experts;  ///< those that could be read, in order
};

struct layer_statistics {
  index_t layer = 0;
  bool mtp = false;     ///< a layer of multi-token prediction
  std::string dialect;  ///< "D8", or "plain"
  index_t experts = 0;
  std::vector<projection_statistics> projections;
};

struct check_totals {
  index_t shards = 0;
  index_t tensors = 0;
  index_t data_bytes = 0;     ///< of all tensors
  index_t read_bytes = 0;     ///< the same when values were read
  index_t weights_found = 0;  ///< quantised tensors
  index_t scales_found = 0;   ///< tensors of scales of weights
  index_t matched = 0;        ///< weights whose scale is there and fits
  index_t activation_scales = 0;
  index_t codes = 0;  ///< elements of all tensors of codes
  index_t nan_codes = 0;
  index_t saturated_codes = 0;
  index_t negative_zero_codes = 0;
  index_t scales = 0;  ///< numbers
  index_t wrong_scales = 0;
  index_t plain_numbers = 0;  ///< of F16, BF16, F32 and F64 tensors that are no scales
  index_t non_finite_numbers = 0;
  double median_scale = 0.0;  ///< of the medians of all quantised matrices; 0: none
};

struct check_report {
  std::vector<finding> findings;
  std::vector<finding_mark> marks;  ///< the worst of each place, also where texts were not kept
  std::vector<rule_total> rules;
  check_totals totals;
  std::vector<layer_statistics> layers;
  std::vector<file_digest> files;  ///< where they were asked for

  [[nodiscard]] MOE64_API index_t count(finding_level level) const noexcept;
  [[nodiscard]] bool ok() const noexcept { return count(finding_level::error) == 0; }
};

/// Everything that can be said about a checkpoint without running it: what opening found, and what
/// its values show. Reads each byte of each tensor once, on the executor of the stream, which must
/// be one of the CPU. The report does not depend on the executor. errc::io_failure when a file
/// cannot be read or changes meanwhile.
[[nodiscard]] MOE64_API check_report check(checkpoint_reader const& checkpoint,
                                           check_options const& options, stream where,
                                           progress_report const& progress = {});

}  // namespace moe64
