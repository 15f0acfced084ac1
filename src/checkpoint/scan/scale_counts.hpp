#pragma once

#include "checkpoint/safetensors/file_dtype.hpp"
#include "moe64/index.hpp"

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace moe64::checkpoint {

/// What was counted in scales. Parts of one tensor are added up.
struct scale_counts {
  index_t scales = 0;
  index_t non_finite = 0;
  index_t negative = 0;  ///< below zero; -0 is a zero
  index_t zero = 0;
  index_t subnormal = 0;  ///< of F32, BF16, F16 and E8M0 0x00: zero where denormals are flushed
  index_t not_power_of_two = 0;  ///< counted only where powers are claimed
  double smallest = std::numeric_limits<double>::infinity();  ///< of the positive finite ones
  double largest = 0.0;

  void add(scale_counts const& other) noexcept;
  friend bool operator==(scale_counts const&, scale_counts const&) = default;
};

/// Scale i of an array as a number. U8 are exponents.
[[nodiscard]] double scale_number(file_dtype type, std::span<std::byte const> bytes, index_t i);

/// Looks once at a row of scales that comes in pieces, and remembers which are zero.
class scale_scanner {
 public:
  /// U8 are exponents. `count` scales are to come.
  scale_scanner(file_dtype type, bool powers_claimed, index_t count);

  void add(std::span<std::byte const> bytes);  ///< whole scales

  [[nodiscard]] scale_counts const& counts() const noexcept { return counts_; }
  /// Of the positive finite ones; where there are very many, of 1024 or more that are evenly
  /// spaced. 0 when there are none.
  [[nodiscard]] double median();
  [[nodiscard]] bool is_zero(index_t scale) const noexcept {
    return !zeros_.empty() && zeros_[static_cast<std::size_t>(scale)];
  }

 private:
  template <class Rule>
  void add_as(std::span<std::byte const> bytes);
  template <class Rule>
  void judge_each(std::span<std::byte const> bytes);

  file_dtype type_;
  bool powers_claimed_;
  index_t count_;
  index_t stride_;
  index_t seen_ = 0;
  index_t next_sample_ = 0;
  scale_counts counts_;
  std::vector<float> sample_;
  std::vector<bool> zeros_;  // empty until there is one
};

}  // namespace moe64::checkpoint
