#pragma once

#include "checkpoint/scan/value_counts.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace moe64::checkpoint {

/// Elements of a matrix are looked at one by one at even distances, this many or up to twice as
/// many, or all of them: enough for the size of its numbers within some per cent.
inline constexpr index_t sampled_elements = 2048;

/// The distance. Odd, so that rows of 2^n elements are not met in the same columns.
[[nodiscard]] constexpr index_t sample_step(index_t elements) noexcept {
  index_t const step = elements / sampled_elements;
  return step < 2 ? 1 : step - (step % 2 == 0 ? 1 : 0);
}

/// Element i as a number, before scaling. NaN and infinities are what they are.
[[nodiscard]] double number_at(value_kind kind, std::span<std::byte const> bytes,
                               index_t i) noexcept;

/// What evenly spaced elements of a stretch, multiplied by their scales, are like.
struct value_sample {
  index_t begin = 0;  ///< of the stretch
  index_t taken = 0;  ///< finite ones
  index_t zeros = 0;  ///< of them
  double squares = 0.0;
  double first = 0.0;        ///< before scaling
  bool constant = true;      ///< all are the first one, before scaling
  std::uint64_t digest = 0;  ///< of all of them, in order

  void add(double stored, double scale) noexcept;
  /// The stretch behind this one.
  void append(value_sample const& next) noexcept;
  /// Root of the mean square; 0 where none was taken.
  [[nodiscard]] double rms() const noexcept;
};

}  // namespace moe64::checkpoint
