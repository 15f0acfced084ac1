#pragma once

#include "moe64/index.hpp"

#include <cstddef>
#include <span>

namespace moe64::checkpoint {

/// Shorter runs of zero bytes are not looked for: a page of the disk is the least that gets lost.
inline constexpr index_t least_zero_run = 4096;

/// What was seen of the zero bytes of a stretch [begin, end): how it begins and ends, and the
/// longest run of at least least_zero_run bytes (the first of equal ones).
struct zero_stretch {
  index_t begin = 0;
  index_t end = 0;
  index_t leading = 0;
  index_t trailing = 0;
  index_t run_begin = 0;
  index_t run_bytes = 0;  ///< 0: there is none

  /// The stretch that begins where this one ends becomes its continuation.
  void append(zero_stretch const& next) noexcept;
  friend bool operator==(zero_stretch const&, zero_stretch const&) = default;
};

/// Looks at a piece that begins at `begin`: at one word in 2 KiB where there is no run.
[[nodiscard]] zero_stretch find_zeros(std::span<std::byte const> piece, index_t begin) noexcept;

}  // namespace moe64::checkpoint
