#pragma once

#include "checkpoint/convert/plan.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// Raise it whenever the same input and options would give other bytes: an unfinished conversion is
/// then begun anew instead of being completed with numbers of another kind. The test
/// the_same_arithmetic_writes_the_same_bytes knows the bytes of each version.
inline constexpr index_t conversion_arithmetic = 1;

/// What a conversion depends on. Two with the same identity write the same bytes.
struct conversion_identity {
  std::string library;      ///< its version and that of its arithmetic
  std::string options;      ///< a checksum of target, shard size and what was assumed
  std::string inputs;       ///< a checksum of size, time and header of every input file
  std::string declaration;  ///< a checksum of the configs, and of how each tensor is read
  std::string adapter;      ///< a checksum of what is merged into the weights; empty: nothing
  std::string text;         ///< the first line of the manifest: the above, and the input files

  /// What of `earlier` is not the same, for a message; empty when nothing is.
  [[nodiscard]] std::string_view difference(conversion_identity const& earlier) const noexcept;
};
[[nodiscard]] conversion_identity identity_of(folder const& files, convert_options const& options,
                                              std::vector<std::string> const& assumed,
                                              conversion_plan const& plan);

/// Sixteen digits.
[[nodiscard]] std::string hex(std::uint64_t value);
[[nodiscard]] std::uint64_t from_hex(std::string_view text);

}  // namespace moe64::checkpoint
