#pragma once

#include "moe64/tensor.hpp"

#include <vector>

namespace moe64::cases {

/// Some of the inter neurons of an expert, the last one among them, the same distance apart: what
/// belongs to them in a gradient is a view. The distance is odd, so that they meet every place in
/// a tile.
class neuron_sample {
 public:
  /// As many as `limit` allows, two at least; all where it allows all.
  neuron_sample(index_t inter, double limit);

  [[nodiscard]] index_t count() const noexcept { return count_; }
  [[nodiscard]] std::vector<index_t> indices() const;
  /// sqrt(count / inter): what a row of numbers alike keeps of its 2-norm when it is cut.
  [[nodiscard]] double norm_share() const;
  /// Of a matrix [inter, cols].
  [[nodiscard]] tensor_view rows_of(tensor_view matrix) const;
  /// Of a matrix [rows, inter].
  [[nodiscard]] tensor_view cols_of(tensor_view matrix) const;

 private:
  [[nodiscard]] tensor_view cut(tensor_view matrix, int dimension) const;

  index_t inter_;
  index_t begin_ = 0;
  index_t step_ = 1;
  index_t count_;
};

}  // namespace moe64::cases
