#pragma once

#include "moe64/index.hpp"

namespace moe64::checkpoint {

/// How far the numbers that are written are from those that were meant, over some elements: m
/// written, v meant, d of v what the adapter adds.
struct delta_sums {
  double delta = 0;  ///< sum of d * d
  double along = 0;  ///< sum of (m - v) * d
  double error = 0;  ///< sum of (m - v) * (m - v)

  void add(delta_sums const& other) noexcept {
    delta += other.delta;
    along += other.along;
    error += other.error;
  }
};

/// Right factors have rows of so many numbers at least: whole vectors.
[[nodiscard]] constexpr index_t low_rank_pitch(index_t cols) noexcept { return align_up(cols, 16); }

/// numbers(r, c) += sum over k of left(r, k) * right(k, c), multiplied and added in order of k.
/// With `left` that is done in f64, and the sum with the number is rounded to f32 once: to nearest,
/// or for `to_odd` so that rounding it to 16 bits gives what rounding the f64 would. With
/// `narrow_left` everything is f32, for numbers that become codes of 8 bits and fewer.
struct low_rank_update {
  float* numbers = nullptr;  ///< [rows] of `pitch` numbers each
  index_t pitch = 0;
  index_t rows = 0;
  index_t cols = 0;
  index_t rank = 0;
  double const* left = nullptr;        ///< [rows, rank], with the scaling; or null ...
  float const* narrow_left = nullptr;  ///< ... and this
  float const* right = nullptr;        ///< [rank] rows of low_rank_pitch(cols)
  float* deltas = nullptr;             ///< out: [rows, cols], what was added
  bool to_odd = false;
};
void add_low_rank(low_rank_update const& update);

/// Sums over `count` elements, in an order that depends on the count alone.
[[nodiscard]] delta_sums measure_deltas(float const* written, float const* meant,
                                        float const* deltas, index_t count);

}  // namespace moe64::checkpoint
