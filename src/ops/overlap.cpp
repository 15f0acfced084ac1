#include "ops/overlap.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace moe64 {
namespace {

/// One dimension of two views side by side, strides in bits.
struct dimension {
  index_t left_extent, left_stride, right_extent, right_stride;
};

/// Bits from the first to past the last element, over the dimensions given.
index_t left_reach(std::span<dimension const> dimensions, index_t element) {
  for (dimension const& d : dimensions) element += (d.left_extent - 1) * d.left_stride;
  return element;
}
index_t right_reach(std::span<dimension const> dimensions, index_t element) {
  for (dimension const& d : dimensions) element += (d.right_extent - 1) * d.right_stride;
  return element;
}

struct element_bits {
  index_t left, right;
};

/// Whether the views meet when the right one begins `gap` bits after the left one. Dimensions come
/// with the longest stride first: fix how far apart both are along it, and look at the rest.
bool meet(index_t gap, std::span<dimension const> dimensions, element_bits const& element) {
  if (gap >= left_reach(dimensions, element.left)) return false;
  if (-gap >= right_reach(dimensions, element.right)) return false;
  if (dimensions.empty()) return true;
  dimension const& d = dimensions.front();
  auto const rest = dimensions.subspan(1);
  if (d.left_extent <= 1 && d.right_extent <= 1) return meet(gap, rest, element);
  if (d.left_stride != d.right_stride || d.left_stride == 0) return true;
  index_t const left = left_reach(rest, element.left);
  index_t const right = right_reach(rest, element.right);
  constexpr index_t few = 8;
  if (left / d.left_stride + right / d.left_stride > few) return true;
  index_t const first = std::max(1 - d.right_extent, (gap - left) / d.left_stride);
  index_t const last = std::min(d.left_extent - 1, (gap + right) / d.left_stride);
  for (index_t step = first; step <= last; ++step) {
    if (meet(gap - step * d.left_stride, rest, element)) return true;
  }
  return false;
}

}  // namespace

bool overlaps(tensor_view const& left, tensor_view const& right) {
  if (left.span() == 0 || right.span() == 0) return false;
  auto const left_begin = reinterpret_cast<std::uintptr_t>(left.data);
  auto const right_begin = reinterpret_cast<std::uintptr_t>(right.data);
  bool const apart = left_begin + static_cast<std::uintptr_t>(left.span_bytes()) <= right_begin ||
                     right_begin + static_cast<std::uintptr_t>(right.span_bytes()) <= left_begin;
  if (apart) return false;
  if (left.rank != right.rank) return true;
  element_bits const element = {bits(left.type), bits(right.type)};
  std::array<dimension, max_rank> dimensions = {};
  for (std::size_t d = 0; d < left.rank; ++d) {
    dimensions[d] = {left.extent[d], checked_mul(left.stride[d], element.left), right.extent[d],
                     checked_mul(right.stride[d], element.right)};
  }
  for (std::size_t i = 1; i < left.rank; ++i) {
    for (std::size_t j = i; j > 0; --j) {
      if (dimensions[j].left_stride <= dimensions[j - 1].left_stride) break;
      std::swap(dimensions[j], dimensions[j - 1]);
    }
  }
  // Both ranges meet, so the distance is below the span of one of them.
  index_t const gap = static_cast<index_t>(right_begin) - static_cast<index_t>(left_begin);
  return meet(checked_mul(gap, 8), {dimensions.data(), std::size_t{left.rank}}, element);
}

bool overlaps_itself(tensor_view const& tensor) {
  int order[max_rank] = {0, 1, 2};  // dimensions by stride, smallest first
  for (int i = 1; i < tensor.rank; ++i) {
    for (int j = i; j > 0 && tensor.stride[order[j]] < tensor.stride[order[j - 1]]; --j) {
      std::swap(order[j], order[j - 1]);
    }
  }
  index_t reach = 0;  // furthest offset of the dimensions seen so far
  for (int i = 0; i < tensor.rank; ++i) {
    int const d = order[i];
    if (tensor.extent[d] == 0) return false;
    if (tensor.extent[d] == 1) continue;
    if (tensor.stride[d] <= reach) return true;
    reach = checked_add(reach, checked_mul(tensor.extent[d] - 1, tensor.stride[d]));
  }
  return false;
}

}  // namespace moe64
