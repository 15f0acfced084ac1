#pragma once

#include "moe64/index.hpp"

#include <cstring>

/// Dot products in one fixed order: element i goes to lane i % 16, each lane adds in ascending
/// order, and the lanes are folded in halves. The order depends on the length alone, so neither the
/// tile, the vector width nor the number of threads can change a bit. Products and sums are rounded
/// separately (no fused multiply-add).
namespace moe64::cpu {

inline constexpr index_t lane_count = 16;

using f32_lanes = float __attribute__((vector_size(lane_count * sizeof(float)), may_alias));

[[nodiscard]] inline float fold(f32_lanes const& lanes) noexcept {
  float partial[lane_count];
  std::memcpy(partial, &lanes, sizeof(partial));
  for (index_t half = lane_count / 2; half > 0; half /= 2) {
    for (index_t i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  return partial[0];
}

/// A dot product that is fed run by run; every run but the last is a multiple of lane_count.
class running_dot {
 public:
  void add(float const* left, float const* right, index_t count) noexcept {
    for (index_t i = 0; i < count; i += lane_count) {
      float a[lane_count] = {};
      float b[lane_count] = {};
      auto const size = static_cast<std::size_t>(count - i < lane_count ? count - i : lane_count);
      std::memcpy(a, left + i, size * sizeof(float));
      std::memcpy(b, right + i, size * sizeof(float));
      for (index_t lane = 0; lane < lane_count; ++lane) lanes_[lane] += a[lane] * b[lane];
    }
  }
  [[nodiscard]] float value() const noexcept { return fold(lanes_); }

 private:
  f32_lanes lanes_ = {};
};

}  // namespace moe64::cpu
