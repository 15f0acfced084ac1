#include "checkpoint/scan/scale_counts.hpp"

#include "core/fail.hpp"
#include "core/float8.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace moe64::checkpoint {
namespace {

constexpr index_t sample_size = 1024;

// For each type: its bits as a type whose order is that of positive numbers and that vector units
// compare, and the range of the numbers with which nothing can be wrong. Signed types put numbers
// with a sign below that range.

struct f32_rule {
  using stored = std::int32_t;
  static constexpr stored least = 0x00800000;
  static constexpr stored most = 0x7f7fffff;
  static constexpr stored fraction = 0x007fffff;
  static constexpr bool has_subnormals = true;
  static float decode(stored bits) { return std::bit_cast<float>(bits); }
};

struct bf16_rule {
  using stored = std::int16_t;
  static constexpr stored least = 0x0080;
  static constexpr stored most = 0x7f7f;
  static constexpr stored fraction = 0x007f;
  static constexpr bool has_subnormals = true;
  static float decode(stored bits) { return decode_bf16(static_cast<std::uint16_t>(bits)); }
};

struct f16_rule {
  using stored = std::int16_t;
  static constexpr stored least = 0x0400;
  static constexpr stored most = 0x7bff;
  static constexpr stored fraction = 0x03ff;
  static constexpr bool has_subnormals = true;
  static float decode(stored bits) {
    return decode_float<f16_format>(static_cast<std::uint16_t>(bits));
  }
};

struct e8m0_rule {
  using stored = std::uint8_t;
  static constexpr stored least = 0x01;
  static constexpr stored most = 0xfe;
  static constexpr stored fraction = 0;
  static constexpr bool has_subnormals = true;  // 2^-127
  static float decode(stored bits) { return decode_e8m0(bits); }
};

/// Small steps are what this type is for: they are no accident.
struct e4m3_rule {
  using stored = std::uint8_t;
  static constexpr stored least = 0x01;
  static constexpr stored most = 0x7e;
  static constexpr stored fraction = 0x07;
  static constexpr bool has_subnormals = false;
  static float decode(stored bits) { return decode_float<e4m3_format>(bits); }
};

template <class Stored>
Stored load(std::byte const* data, std::size_t i) {
  Stored bits = 0;
  std::memcpy(&bits, data + i * sizeof(Stored), sizeof bits);
  return bits;
}

template <class Stored>
struct stored_range {
  Stored least;
  Stored most;
  Stored fraction;  ///< bits that any of them has set
};

template <class Rule>
stored_range<typename Rule::stored> range_of(std::byte const* data, std::size_t count) {
  using stored = typename Rule::stored;
  stored least = std::numeric_limits<stored>::max();
  stored most = std::numeric_limits<stored>::min();
  stored fraction = 0;
  for (std::size_t i = 0; i < count; ++i) {
    auto const bits = load<stored>(data, i);
    least = bits < least ? bits : least;
    most = bits > most ? bits : most;
    fraction = static_cast<stored>(fraction | (bits & Rule::fraction));
  }
  return {least, most, fraction};
}

template <class Rule>
double number_as(std::span<std::byte const> bytes, index_t i) {
  return static_cast<double>(
      Rule::decode(load<typename Rule::stored>(bytes.data(), static_cast<std::size_t>(i))));
}

}  // namespace

double scale_number(file_dtype type, std::span<std::byte const> bytes, index_t i) {
  switch (type) {
    case file_dtype::f32:
      return number_as<f32_rule>(bytes, i);
    case file_dtype::bf16:
      return number_as<bf16_rule>(bytes, i);
    case file_dtype::f16:
      return number_as<f16_rule>(bytes, i);
    case file_dtype::u8:
    case file_dtype::f8_e8m0:
      return number_as<e8m0_rule>(bytes, i);
    case file_dtype::f8_e4m3:
      return number_as<e4m3_rule>(bytes, i);
    default:
      fail(errc::internal, "[check] {} holds no scales", name(type));
  }
}

void scale_counts::add(scale_counts const& other) noexcept {
  scales += other.scales;
  non_finite += other.non_finite;
  negative += other.negative;
  zero += other.zero;
  subnormal += other.subnormal;
  not_power_of_two += other.not_power_of_two;
  smallest = std::min(smallest, other.smallest);
  largest = std::max(largest, other.largest);
}

scale_scanner::scale_scanner(file_dtype type, bool powers_claimed, index_t count)
    : type_(type),
      powers_claimed_(powers_claimed),
      count_(count),
      stride_(std::max<index_t>(1, count / sample_size)) {
  sample_.reserve(static_cast<std::size_t>(ceil_div(count, stride_)));
}

void scale_scanner::add(std::span<std::byte const> bytes) {
  switch (type_) {
    case file_dtype::f32:
      return add_as<f32_rule>(bytes);
    case file_dtype::bf16:
      return add_as<bf16_rule>(bytes);
    case file_dtype::f16:
      return add_as<f16_rule>(bytes);
    case file_dtype::u8:
    case file_dtype::f8_e8m0:
      return add_as<e8m0_rule>(bytes);
    case file_dtype::f8_e4m3:
      return add_as<e4m3_rule>(bytes);
    default:
      fail(errc::internal, "[check] {} holds no scales", name(type_));
  }
}

template <class Rule>
void scale_scanner::add_as(std::span<std::byte const> bytes) {
  using stored = typename Rule::stored;
  std::size_t const count = bytes.size() / sizeof(stored);
  if (count == 0) return;
  auto const range = range_of<Rule>(bytes.data(), count);
  bool const clean = range.least >= Rule::least && range.most <= Rule::most &&
                     !(powers_claimed_ && range.fraction != 0);
  if (clean) {
    counts_.smallest = std::min(counts_.smallest, static_cast<double>(Rule::decode(range.least)));
    counts_.largest = std::max(counts_.largest, static_cast<double>(Rule::decode(range.most)));
  } else {
    judge_each<Rule>(bytes);
  }
  auto const end = seen_ + static_cast<index_t>(count);
  for (; next_sample_ < end; next_sample_ += stride_) {
    float const value =
        Rule::decode(load<stored>(bytes.data(), static_cast<std::size_t>(next_sample_ - seen_)));
    if (std::isfinite(value) && value > 0.0F) sample_.push_back(value);
  }
  seen_ = end;
  counts_.scales += static_cast<index_t>(count);
}

template <class Rule>
void scale_scanner::judge_each(std::span<std::byte const> bytes) {
  using stored = typename Rule::stored;
  for (std::size_t i = 0; i < bytes.size() / sizeof(stored); ++i) {
    auto const bits = load<stored>(bytes.data(), i);
    float const value = Rule::decode(bits);
    if (!std::isfinite(value)) {
      ++counts_.non_finite;
      continue;
    }
    if (value == 0.0F) {
      ++counts_.zero;
      if (zeros_.empty()) zeros_.resize(static_cast<std::size_t>(count_));
      zeros_[static_cast<std::size_t>(seen_) + i] = true;
      continue;
    }
    if (value < 0.0F) ++counts_.negative;
    float const magnitude = std::abs(value);
    if (Rule::has_subnormals && magnitude < Rule::decode(Rule::least)) ++counts_.subnormal;
    // the fraction of a small number has leading zeros: a power of two has one bit there
    int exponent = 0;
    if (powers_claimed_ && std::frexp(magnitude, &exponent) != 0.5F) ++counts_.not_power_of_two;
    if (value < 0.0F) continue;
    counts_.smallest = std::min(counts_.smallest, static_cast<double>(value));
    counts_.largest = std::max(counts_.largest, static_cast<double>(value));
  }
}

double scale_scanner::median() {
  if (sample_.empty()) return 0.0;
  auto const middle = sample_.begin() + std::ssize(sample_) / 2;
  std::nth_element(sample_.begin(), middle, sample_.end());
  return static_cast<double>(*middle);
}

}  // namespace moe64::checkpoint
