#include "cases/neurons.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace moe64::cases {

neuron_sample::neuron_sample(index_t inter, double limit) : inter_(inter), count_(inter) {
  constexpr index_t least = 2;
  if (limit >= static_cast<double>(inter) || inter <= least) return;
  count_ = std::max(least, static_cast<index_t>(limit));
  step_ = (inter - 1) / (count_ - 1);
  if (step_ % 2 == 0) --step_;
  begin_ = inter - 1 - (count_ - 1) * step_;
}

std::vector<index_t> neuron_sample::indices() const {
  std::vector<index_t> all;
  for (index_t i = 0; i < count_; ++i) all.push_back(begin_ + i * step_);
  return all;
}

double neuron_sample::norm_share() const {
  return std::sqrt(static_cast<double>(count_) / static_cast<double>(inter_));
}

tensor_view neuron_sample::rows_of(tensor_view matrix) const { return cut(matrix, 0); }

tensor_view neuron_sample::cols_of(tensor_view matrix) const { return cut(matrix, 1); }

tensor_view neuron_sample::cut(tensor_view matrix, int dimension) const {
  index_t const stride = matrix.stride[dimension];
  matrix.data = static_cast<std::byte*>(matrix.data) + begin_ * stride * bits(matrix.type) / 8;
  matrix.stride[dimension] = stride * step_;
  matrix.extent[dimension] = count_;
  return matrix;
}

}  // namespace moe64::cases
